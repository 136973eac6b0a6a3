// Folded stacks and speedscope.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "report/flame.h"
#include "report/words.h"

namespace flatout::report {

using Json = nlohmann::ordered_json;
using model::Run;

namespace {

constexpr size_t kMaxFoldedNodes = 20000;
// A sample is one reading; beyond this many per thread neighbours are merged.
constexpr size_t kMaxSamples = 20000;
constexpr size_t kMaxDepth = 200;

// One frame of a folded stack: no separator, no line break.
std::string folded_frame(const ProfileNode& node) {
  std::string out = escape_terminal(node.name);
  std::replace(out.begin(), out.end(), ';', ':');
  return node.is_state ? "[" + out + "]" : out;
}

/// Speedscope's table of shared frames, made as they are met.
class FrameTable {
 public:
  explicit FrameTable(const Run& run) : run_(run) {}

  size_t frame(model::FrameId id) {
    const model::Frame f = id < run_.frames.size() ? run_.frames[id] : model::Frame{};
    const auto [it, fresh] = ids_.try_emplace({f.function, f.file, f.line}, frames_.size());
    if (fresh) {
      const std::string function = to_utf8(run_.string(f.function));
      Json one{{"name", function.empty() ? std::string("?") : function}};
      if (f.file != 0) one["file"] = to_utf8(run_.string(f.file));
      if (f.line > 0) one["line"] = f.line;
      frames_.push_back(std::move(one));
    }
    return it->second;
  }
  size_t state(model::ThreadState state) {
    const auto [it, fresh] = states_.try_emplace(state, frames_.size());
    if (fresh) frames_.push_back({{"name", "[" + std::string(label(state)) + "]"}});
    return it->second;
  }
  Json take() { return std::move(frames_); }

 private:
  const Run& run_;
  std::map<std::tuple<model::StringId, model::StringId, uint32_t>, size_t> ids_;
  std::map<model::ThreadState, size_t> states_;
  Json frames_ = Json::array();
};

Json sample_of(const Run& run, const model::StackReading& r, FrameTable& table) {
  std::vector<size_t> frames;
  if (!on_cpu(r.state)) frames.push_back(table.state(r.state));
  for (model::StackId s = r.stack; s != 0 && s < run.stacks.size() && frames.size() < kMaxDepth;
       s = run.stacks[s].parent) {
    frames.push_back(table.frame(run.stacks[s].frame));
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

}  // namespace

std::string folded_stacks(const Run& run) {
  const Profile profile = make_profile(run, kMaxFoldedNodes);
  std::vector<std::string> lines;
  for (uint32_t id = 1; id < profile.nodes.size(); ++id) {
    const ProfileNode& node = profile.nodes[id];
    double own = node.total_us;
    for (const uint32_t child : node.children) own -= profile.nodes[child].total_us;
    if (own < 1) continue;
    std::string stack = folded_frame(node);
    for (uint32_t up = node.parent; up != 0; up = profile.nodes[up].parent) {
      stack.insert(0, folded_frame(profile.nodes[up]) + ";");
    }
    lines.push_back(fmt::format("{} {}\n", stack, std::llround(own)));
  }
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const std::string& line : lines) out += line;
  return out;
}

std::string speedscope_json(const Run& run) {
  std::vector<std::vector<const model::StackReading*>> by_thread(run.threads.size());
  for (const model::StackReading& r : run.readings) {
    if (r.thread < by_thread.size() && r.state < model::ThreadState::kCount &&
        (r.flags & model::kIdleWorker) == 0) {
      by_thread[r.thread].push_back(&r);
    }
  }
  FrameTable table(run);
  Json profiles = Json::array();
  size_t training = 0;
  for (size_t t = 0; t < by_thread.size(); ++t) {
    const std::vector<const model::StackReading*>& readings = by_thread[t];
    if (readings.empty()) continue;
    const model::Thread& thread = run.threads[t];
    const model::Process* process =
        thread.process < run.processes.size() ? &run.processes[thread.process] : nullptr;
    Json samples = Json::array();
    Json weights = Json::array();
    double total = 0;
    const size_t stride = readings.size() / kMaxSamples + 1;
    for (size_t i = 0; i < readings.size(); i += stride) {
      double weight = 0;
      for (size_t k = i; k < std::min(i + stride, readings.size()); ++k) {
        weight += readings[k]->weight_us;
      }
      samples.push_back(sample_of(run, *readings[i], table));
      weights.push_back(weight);
      total += weight;
    }
    if (run.steps.thread == t) training = profiles.size();
    profiles.push_back({{"type", "sampled"},
                        {"name", to_utf8(fmt::format("{} {} ({})", process ? process->name : "?",
                                                     thread.name, thread.tid))},
                        {"unit", "microseconds"},
                        {"startValue", 0},
                        {"endValue", total},
                        {"samples", std::move(samples)},
                        {"weights", std::move(weights)}});
  }
  Json out;
  out["$schema"] = "https://www.speedscope.app/file-format-schema.json";
  out["name"] = to_utf8(command_of(run));
  out["exporter"] = "flatout";
  out["activeProfileIndex"] = training;
  out["shared"] = {{"frames", table.take()}};
  out["profiles"] = std::move(profiles);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace flatout::report

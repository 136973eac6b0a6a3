#include "diagnose/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "base/text.h"

namespace flatout::diagnose {

using model::Run;

namespace {

/// The fact of one process: those of the training process have no prefix (docs/run-folder.md).
std::string_view fact_of(const Run& run, model::ProcessId process, std::string_view key) {
  const std::string own =
      "pid." + std::to_string(run.processes[process].pid) + "." + std::string(key);
  if (const std::string_view told = run.fact(own); !told.empty()) return told;
  const bool training =
      run.steps.source != model::StepSource::kNone && run.steps.thread < run.threads.size()
          ? run.threads[run.steps.thread].process == process
          : run.processes[process].main;
  return training ? run.fact(std::string(key)) : std::string_view();
}

// Of the fastest growth: slower than that, a process is held up.
constexpr double kHeldUp = 0.25;

/// Start-up takes memory, too.
TimePoint steps_begin(const Run& run) {
  return run.steps.steps.empty() ? run.begin : run.steps.steps.front().begin;
}

/// How fast a process grows. Where memory is short, the kernel is busy with pages that were taken
/// away and come back: only the times in which much is added count.
class Growth {
 public:
  Growth(const model::Series* memory, TimePoint from) {
    if (memory == nullptr || memory->readings.size() < 3) return;
    readings_ = memory->readings;
    for (next_ = readings_.size() - 1; next_ > 0 && readings_[next_].at > from; --next_) {
      fastest_ = std::max(fastest_, rate());
    }
    next_ = 1;
  }

  /// In bytes/s; 1 where nothing is known. Asked in the order of time.
  double at(TimePoint t) {
    if (readings_.empty()) return 1;
    while (next_ + 1 < readings_.size() && readings_[next_].at < t) ++next_;
    return rate() > kHeldUp * fastest_ ? rate() : 0;
  }

 private:
  double rate() const {
    const model::Reading &a = readings_[next_ - 1], &b = readings_[next_];
    return b.at > a.at ? std::max((b.value - a.value) / to_s(b.at - a.at), 0.0) : 0;
  }

  std::span<const model::Reading> readings_;
  size_t next_ = 1;
  double fastest_ = 0;
};

// Part of the growth that the items of a container must make up: what they lead to is not weighed.
constexpr double kSomeOfIt = 0.02;

/// Whether "340 items, 1.00 a step, 4096 bytes each" may be most of so many bytes a step.
bool explains(std::string_view how, double bytes) {
  double rate = 0, each = 0;
  for (std::string_view part : split(how, ',')) {
    part = trim(part);
    const auto number = parse_number<double>(next_word(part));
    if (trim(part) == "a step") rate = number.value_or(0);
    if (trim(part) == "bytes each") each = number.value_or(0);
  }
  return each == 0 || how.ends_with("graph") || rate * each > kSomeOfIt * bytes;
}

}  // namespace

std::optional<model::Where> parse_place(std::string_view text) {
  const size_t in = text.rfind(" in ");
  if (in == std::string_view::npos) return std::nullopt;
  const std::string_view place = text.substr(0, in);
  const size_t colon = place.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const auto line = parse_number<int64_t>(place.substr(colon + 1));
  if (!line) return std::nullopt;
  return model::Where{std::string(place.substr(0, colon)), *line, std::string(text.substr(in + 4))};
}

std::optional<model::Where> setting_line(const Run& run, std::string_view key) {
  if (const std::string_view own = run.fact(std::string(key)); !own.empty())
    return parse_place(own);
  const std::string tail = "." + std::string(key);
  for (const auto& [name, value] : run.info) {
    if (name.starts_with("pid.") && name.ends_with(tail)) return parse_place(value);
  }
  return std::nullopt;
}

std::string in_brackets(const std::optional<model::Where>& line) {
  if (!line) return "";
  const std::string name = escape_terminal(line->file.substr(line->file.rfind('/') + 1));
  return fmt::format(" ({}:{})", name, line->line);
}

double torch_threads(const Run& run) {
  return std::max(1.0, parse_number<double>(run.fact("torch.num_threads")).value_or(1));
}

double graph_operations(const Run& run) {
  std::string_view nodes = run.fact("torch.graph_nodes");
  if (nodes.ends_with('+')) nodes.remove_suffix(1);  // there were more
  return parse_number<double>(nodes).value_or(0);
}

std::optional<Grower> grower(const Run& run, model::ProcessId process, double bytes) {
  if (process >= run.processes.size()) return std::nullopt;
  const std::string_view text = fact_of(run, process, "growth.0");
  const size_t colon = text.rfind(": ");
  if (colon == std::string_view::npos) return std::nullopt;
  Grower out;
  out.how = text.substr(colon + 2);
  if (!explains(out.how, bytes)) return std::nullopt;
  const std::string_view what = text.substr(0, colon);
  const size_t at = what.find(" at ");
  out.name = what.substr(0, at);
  if (at != std::string_view::npos) out.where = parse_place(what.substr(at + 4));
  return out;
}

std::optional<model::Where> opening_line(const Run& run, model::EntityId of) {
  for (model::ProcessId p = 0; p < run.processes.size(); ++p) {
    if (of >= run.entities.size() || run.entities[of].key != run.processes[p].pid) continue;
    return parse_place(fact_of(run, p, "descriptors.opened_at"));
  }
  return std::nullopt;
}

const model::Series* own_memory(const RunView& view, model::ProcessId process) {
  for (const model::SignalId id : {model::SignalId::kProcRssAnon, model::SignalId::kProcRss}) {
    const model::Series* s = view.process(id, process);
    if (s != nullptr && !s->empty()) return s;
  }
  return nullptr;
}

Grown grown(const RunView& view, model::ProcessId process) {
  Grown out{process, own_memory(view, process)};
  if (out.series == nullptr) return out;
  const TimePoint from = steps_begin(view.run());
  double least = 0;
  for (const model::Reading& r : out.series->readings) {
    if (least == 0 || r.at <= from) least = r.value;
    out.most = std::max(out.most, r.value);
  }
  out.by = out.most - least;
  return out;
}

Grown grown_most(const RunView& view) {
  Grown out;
  for (model::ProcessId p = 0; p < view.run().processes.size(); ++p) {
    if (!view.run().processes[p].in_job) continue;
    const Grown one = grown(view, p);
    if (one.series != nullptr && (out.series == nullptr || one.by > out.by)) out = one;
  }
  return out;
}

std::optional<model::Where> growing_line(const RunView& view, const Grown& grown) {
  const double steps = static_cast<double>(std::max<size_t>(view.run().steps.steps.size(), 1));
  if (const auto keeps = grower(view.run(), grown.process, grown.by / steps); keeps && keeps->where)
    return keeps->where;
  return touching_line(view, grown.process);
}

std::optional<model::Where> touching_line(const RunView& view, model::ProcessId process) {
  const Run& run = view.run();
  std::unordered_map<model::FrameId, double> lines;
  model::FrameId hottest = 0;
  double most = 0;
  const TimePoint from = steps_begin(run);
  Growth growth(own_memory(view, process), from);
  for (const model::StackReading& r : run.readings) {
    if (r.at < from || r.thread >= run.threads.size() || run.threads[r.thread].process != process)
      continue;
    const Act act = act_of(r, view.stacks().traits(r.stack));
    if (act != Act::kKernel && act != Act::kMemory && act != Act::kReclaim) continue;
    const model::FrameId frame = view.stacks().user_frame(r.stack);
    if (frame == 0) continue;
    double& bytes = lines[frame];
    bytes += r.weight_us * 1e-6 * growth.at(r.at);
    if (bytes > most) {
      most = bytes;
      hottest = frame;
    }
  }
  if (hottest == 0) return std::nullopt;
  return view.stacks().where(hottest);
}

}  // namespace flatout::diagnose

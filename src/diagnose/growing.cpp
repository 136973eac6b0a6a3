#include "diagnose/growing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;

namespace {

// Of what the steps take longer, the least that a line must make up; and times that it takes what
// it took.
constexpr double kMostOfIt = 0.5, kLonger = 1.4;
// Where all else takes longer as well, by this factor and this part of what the steps do, or by
// this part of what the line does, it is no single line.
constexpr double kRest = 1.25, kSomeOfIt = 0.2, kAlike = 0.5;
// Of a step, by which readings may be off.
constexpr double kUnsure = 0.05;
// Of the fast steps: beside a line that takes more of them there is too little to judge by.
constexpr double kMostOfAll = 0.7;
// From the middle of the first quarter back to the start: a sixth of the way from there to the
// middle of the last.
constexpr double kToStart = 1.0 / 6;

/// What a thread does itself, at a line. Collections have a finding of their own, and the line of
/// a backward pass has as much to do as the forward pass gave it.
bool does(const Cell& c) {
  if (c.role != Role::kTrainer || c.user == 0 || c.act == Act::kGc ||
      c.part == model::Part::kBackward)
    return false;
  return on_cpu(c.act) || c.act == Act::kRead || c.act == Act::kWrite || c.act == Act::kMetadata ||
         c.act == Act::kSeek;
}

/// Functions count with all of their lines, but for the loop's own, whose lines do all that a step
/// does. A comprehension is part of the function whose lines are nearest.
class Places {
 public:
  explicit Places(const RunView& view) : run_(view.run()) {
    for (const Cell& c : view.profile().cells()) {
      if (c.role != Role::kTrainer || c.user == 0) continue;
      if (c.part == model::Part::kBackward) loops_.insert(own_function(c.user));
      if (does(c) && !is_nested(c.user))
        functions_.try_emplace(line_of(c.user), own_function(c.user));
    }
  }
  uint64_t of(model::FrameId line) const {
    const uint64_t function = is_nested(line) ? nearest_function(line) : own_function(line);
    return loops_.contains(function) ? line_of(line) : function;
  }

 private:
  bool is_nested(model::FrameId line) const {
    const std::string_view name = run_.string(run_.frames[line].function);
    return name.ends_with("comp>") || name.ends_with("<genexpr>");
  }
  uint64_t nearest_function(model::FrameId line) const {
    const uint64_t key = line_of(line);
    uint64_t function = own_function(line), nearest = 1 << 16;  // lines, within its file
    const auto look = [&](auto it) {
      const uint64_t distance = it->first > key ? it->first - key : key - it->first;
      if (distance >= nearest) return;
      nearest = distance;
      function = it->second;
    };
    const auto next = functions_.lower_bound(key);
    if (next != functions_.begin()) look(std::prev(next));
    if (next != functions_.end()) look(next);
    return function;
  }
  uint64_t line_of(model::FrameId line) const {
    const model::Frame& f = run_.frames[line];
    return uint64_t{f.file} << 32 | f.line;
  }
  /// Apart from all lines.
  uint64_t own_function(model::FrameId line) const {
    return uint64_t{1} << 63 | function_key(run_, line);
  }

  const model::Run& run_;
  std::map<uint64_t, uint64_t> functions_;  // by line, of what is no comprehension
  std::unordered_set<uint64_t> loops_;
};

/// What the training thread does at a place: seconds per step, and the line that has most of them.
struct Place {
  double seconds = 0;
  model::FrameId line = 0;
  double at_line = 0;
};

/// Python that runs fast cannot always be read: that is spread as the rest of the same part is.
std::unordered_map<uint64_t, Place> places_in(const RunView& view, const Places& places) {
  std::array<double, model::kPartCount + 1> read{}, unread{};
  for (const Cell& c : view.profile().cells()) {
    if (c.role != Role::kTrainer || !on_cpu(c.act)) continue;
    (is_unread(c) ? unread : read)[static_cast<size_t>(c.part)] += c.seconds;
  }
  const double all = view.profile().seconds([](const Cell& c) { return c.role == Role::kTrainer; });
  const double scale =
      all > 0 ? view.per_step(Role::kTrainer, [](const Cell&) { return true; }) / all : 0;
  std::unordered_map<uint64_t, Place> out;
  for (const Cell& c : view.profile().cells()) {
    if (!does(c)) continue;
    const auto part = static_cast<size_t>(c.part);
    const double spread = on_cpu(c.act) && read[part] > 0 ? 1 + unread[part] / read[part] : 1;
    const double seconds = scale * c.seconds * spread;
    Place& place = out[places.of(c.user)];
    place.seconds += seconds;
    if (seconds > place.at_line) {
      place.line = c.user;
      place.at_line = seconds;
    }
  }
  return out;
}

/// Of a step, without waiting for a core: who takes these has a finding of his own.
double without_queue(const RunView& view) {
  return view.steps().mean -
         view.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kRunQueue; });
}

/// Seconds per step of the model's passes without gradients: those with them may hold the line.
double passes_without_gradients(const RunView& view) {
  const auto& steady = view.steps().steady;
  double sum = 0;
  for (const model::Slice& s : view.run().slices) {
    if (s.kind != model::SliceKind::kValidation || s.thread != view.trainer()) continue;
    if (s.begin >= steady.front()->begin && s.end <= steady.back()->end) sum += to_s(s.length());
  }
  return sum / static_cast<double>(steady.size());
}

/// Whether the model itself has more to do: rollouts and texts that get longer.
bool with_the_model(const RunView& fast, const RunView& slow, const LongerLine& line) {
  const double was = passes_without_gradients(fast), more = passes_without_gradients(slow) - was;
  return was > 0 && more * line.before >= kAlike * (line.after - line.before) * was;
}

}  // namespace

std::optional<LongerLine> longer_line(const RunView& fast, const RunView& slow) {
  const double fast_step = without_queue(fast), slow_step = without_queue(slow);
  const double more = slow_step - fast_step;
  if (!fast.has_steps() || !slow.has_steps() || more <= 0) return std::nullopt;
  const Places places(slow);
  const auto before = places_in(fast, places), after = places_in(slow, places);
  const auto seconds_before = [&](uint64_t key) {
    const auto it = before.find(key);
    return it == before.end() ? 0.0 : it->second.seconds;
  };
  const Place* most = nullptr;
  LongerLine out;
  for (const auto& [key, place] : after) {
    const double was = seconds_before(key);
    if (most != nullptr && place.seconds - was <= out.after - out.before) continue;
    most = &place;
    out.before = was;
    out.after = place.seconds;
  }
  if (most == nullptr) return std::nullopt;
  if (out.after - out.before < kMostOfIt * more || out.after < kLonger * out.before)
    return std::nullopt;
  const double rest = std::max(fast_step - out.before, 0.0);
  const double slow_rest = slow_step - out.after;
  if (slow_rest < -kUnsure * slow_step || slow_rest > kRest * rest + kSomeOfIt * more)
    return std::nullopt;
  const double rest_more = slow_rest - rest;
  if (rest_more > kUnsure * slow_step &&
      rest_more * out.before > kAlike * (out.after - out.before) * rest)
    return std::nullopt;
  out.with_model = with_the_model(fast, slow, out);
  out.share = out.before / fast_step;
  out.where = slow.stacks().where(most->line);
  const uint64_t key = places.of(most->line);
  const auto there = [&](const Cell& c) { return does(c) && places.of(c.user) == key; };
  out.readings = slow.readings(there);
  return out.readings < kFewReadings ? std::nullopt : std::optional(out);
}

std::optional<Finding> growing_work(const RunView& view, const LongerLine& line) {
  if (line.share > kMostOfAll) return std::nullopt;
  const double at_first = std::max(line.before - kToStart * (line.after - line.before), 0.0);
  const double usual = (line.before + line.after) / 2;
  Findings findings(view);
  const double cost = usual - at_first;
  Finding* f = findings.add("cpu.growing_work", "A line has more to do with every step", 0.85,
                            WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = cost}));
  if (f == nullptr) return std::nullopt;
  f->where = line.where;
  add_growth(*f, line);
  return std::move(*f);
}

void add_growth(Finding& finding, const LongerLine& line) {
  evidence(
      finding,
      fmt::format("the work there takes {} a step in the first quarter of them", ms(line.before)),
      line.before * 1e3, "ms", "stacks", line.readings);
  evidence(finding, fmt::format("it takes {} a step in the last quarter", ms(line.after)),
           line.after * 1e3, "ms", "stacks", line.readings);
  remedy(finding, "keep_up",
         "Do not go through all that was gathered again: keep sums and the last few "
         "(deque(maxlen=...)), append to files instead of writing them anew, draw from a structure "
         "that is kept in order.");
}

}  // namespace flatout::diagnose

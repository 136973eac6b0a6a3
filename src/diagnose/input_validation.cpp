// Validations between the steps whose loader starts its workers anew each time: no step waits for
// them, but the job does.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Part;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

/// A validation, and the step behind it, which ends what it left: a loader without a name is gone
/// when its loop is left, and its workers are waited for.
struct Validation {
  TimePoint begin, end;
  const Step* next = nullptr;
  double starting = 0;  // seconds in which workers start
  double waiting = 0;   // for the first batch
  bool starts = false;
};

std::vector<Validation> validations_of(const RunView& view) {
  std::vector<Validation> out;
  const auto& steps = view.run().steps.steps;
  const TimePoint from = view.steps().steady.front()->begin;
  const TimePoint until = view.steps().steady.back()->end;
  for (size_t i = 1; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (step.validation && steps[i - 1].end >= from && step.begin <= until)
      out.push_back({.begin = steps[i - 1].end, .end = step.begin, .next = &step});
  }
  return out;
}

/// The validation that the slice lies in, if any; they and the slices come in their order.
Validation* around(std::vector<Validation>& all, const Slice& slice) {
  const auto after = std::ranges::upper_bound(all, slice.begin, {}, &Validation::begin);
  if (after == all.begin()) return nullptr;
  Validation& one = *std::prev(after);
  return slice.end <= one.end ? &one : nullptr;
}

/// The user's line at which the training thread starts workers within validations.
std::optional<model::Where> starting_line(const RunView& view, const std::vector<Validation>& all) {
  std::unordered_map<model::FrameId, uint64_t> lines;
  auto next = all.begin();
  for (const model::StackReading& r : view.run().readings) {
    if (r.thread != view.trainer()) continue;
    while (next != all.end() && next->end <= r.at) ++next;
    if (next == all.end()) break;
    if (r.at < next->begin || !next->starts) continue;
    const bool starts = (view.stacks().traits(r.stack) & (kInSpawn | kInSubprocess)) != 0;
    const model::FrameId frame = view.stacks().user_frame(r.stack);
    if (starts && frame != 0) lines[frame] += r.weight_us;
  }
  const auto most =
      std::ranges::max_element(lines, {}, [](const auto& line) { return line.second; });
  if (most == lines.end()) return std::nullopt;
  return view.stacks().where(most->first);
}

}  // namespace

void detect_validation(const RunView& view, Findings& findings) {
  if (!view.has_steps() || findings.has("input.worker_restart")) return;
  std::vector<Validation> all = validations_of(view);
  if (all.size() < 2) return;
  std::vector<double> fetches;
  for (const Slice& s : view.run().slices) {
    Validation* const in = around(all, s);
    if (in == nullptr) continue;
    const double length = to_s(s.length());
    if (s.thread != view.trainer()) {
      if (s.kind == SliceKind::kFetch) fetches.push_back(length);
    } else if (s.kind == SliceKind::kLoaderStart && s.value > 0) {
      in->starts = true;
      in->starting += length;
    } else if (s.kind == SliceKind::kInputWait && in->waiting == 0) {
      in->waiting = length;
    }
  }
  // Even lasting workers would have to make a first batch.
  const double first_batch = fetches.empty() ? 0 : median(fetches);
  const StepsView& steps = view.steps();
  double validating = 0, lost = 0;
  int64_t starts = 0;
  for (const Validation& v : all) {
    validating += to_s(v.end - v.begin) + std::max(0.0, to_s(v.next->length()) - steps.mean);
    if (!v.starts) continue;
    ++starts;
    lost += v.starting + std::max(0.0, v.waiting - first_batch);
    // The workers are waited for, and what the fork shared is copied.
    lost += beyond_usual(view, *v.next,
                         {Part::kOther, Part::kForward, Part::kBackward, Part::kOptimizer});
  }
  if (starts < 2) return;
  const double n = static_cast<double>(steps.count) + static_cast<double>(all.size());
  const double saved = std::min(lost, validating) / n;
  const double step = steps.mean + validating / n;
  if (saved < kWorthSaying * step) return;
  model::Finding& f = findings.add_outside(
      "input.worker_restart", "Workers of the validation's loader start anew each time", 0.9);
  f.cost_ms_per_step = saved * 1e3;
  f.between_steps = true;
  f.gain = step / findings.left_of(step, saved, saved);
  f.where = starting_line(view, all);
  const double share = validating / n / step, each = lost / static_cast<double>(starts);
  evidence(f, fmt::format("validating takes {} of the job's time", format_percent(share)), share,
           "ratio", "timeline", static_cast<int64_t>(all.size()));
  evidence(f, fmt::format("each start of its workers costs {}", ms(each)), each * 1e3, "ms",
           "agent.loader", starts);
  remedy(f, "persistent_workers",
         "Make the validation's loader once, with persistent_workers=True, or give it no workers.");
}

}  // namespace flatout::diagnose

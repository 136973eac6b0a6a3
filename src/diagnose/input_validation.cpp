// Validations between the steps: no step waits for them, but the job does. Their loader may start
// its workers anew each time, or they may come so often that little else is done.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
  TimePoint computes = TimePoint::max();  // its first forward pass
  bool ends_epoch = false;                // an epoch has ended before that
};

// Validations that come within the epoch, at least once in so many steps, and take kMuchBetween of
// the time are nothing that training has to wait for.
constexpr size_t kOften = 25, kFewValidations = 8;
// Of a line's time in validations, what it may take besides and still be theirs alone.
constexpr double kElsewhere = 0.1;

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

/// The user's line that the training thread spends most time at in validations, of such readings.
template <typename Wanted>
std::optional<model::Where> line_within(const RunView& view, const std::vector<Validation>& all,
                                        const Wanted& wanted) {
  std::unordered_map<model::FrameId, uint64_t> lines;
  auto next = all.begin();
  for (const model::StackReading& r : view.run().readings) {
    if (r.thread != view.trainer()) continue;
    while (next != all.end() && next->end <= r.at) ++next;
    if (next == all.end()) break;
    const model::FrameId frame = view.stacks().user_frame(r.stack);
    if (r.at >= next->begin && frame != 0 && wanted(*next, r)) lines[frame] += r.weight_us;
  }
  const auto most =
      std::ranges::max_element(lines, {}, [](const auto& line) { return line.second; });
  if (most == lines.end()) return std::nullopt;
  return view.stacks().where(most->first);
}

/// The user's line that calls what the training thread does in validations: of those that steps do
/// not come to, the outermost, where the loop decides on it. What runs the model is in both.
std::optional<model::Where> calling_line(const RunView& view, const std::vector<Validation>& all) {
  const auto& run = view.run();
  std::vector<double> within(run.stacks.size()), elsewhere(run.stacks.size());
  auto next = all.begin();
  auto step = view.steps().steady.begin();  // none of these follows a validation
  const auto end = view.steps().steady.end();
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer() || r.stack >= within.size()) continue;
    while (next != all.end() && next->end <= r.at) ++next;
    while (step != end && (*step)->end <= r.at) ++step;
    if (next != all.end() && r.at >= next->begin) {
      within[r.stack] += r.weight_us;
    } else if (step != end && r.at >= (*step)->begin) {
      elsewhere[r.stack] += r.weight_us;
    }
  }
  struct Time {
    double within = 0, elsewhere = 0;
  };
  std::unordered_map<model::FrameId, Time> frames;
  for (model::StackId stack = 1; stack < within.size(); ++stack) {
    if (within[stack] + elsewhere[stack] <= 0) continue;
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      Time& time = frames[run.stacks[at].frame];
      time.within += within[stack];
      time.elsewhere += elsewhere[stack];
    }
  }
  std::unordered_map<model::FrameId, double> lines;
  for (model::StackId stack = 1; stack < within.size(); ++stack) {
    if (within[stack] <= 0) continue;
    model::FrameId outermost = 0;
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      const model::FrameId frame = run.stacks[at].frame;
      const Time& time = frames[frame];
      const bool only_here = time.elsewhere < kElsewhere * time.within;
      if (only_here && view.stacks().owner(frame) == Owner::kUser) outermost = frame;
    }
    if (outermost != 0) lines[outermost] += within[stack];
  }
  const auto most =
      std::ranges::max_element(lines, {}, [](const auto& line) { return line.second; });
  if (most == lines.end()) return std::nullopt;
  return view.stacks().where(most->first);
}

/// Time of a validation, and of what the step behind it takes longer.
double taken_by(const Validation& v, const StepsView& steps) {
  return to_s(v.end - v.begin) + std::max(0.0, to_s(v.next->length()) - steps.mean);
}

void find_epochs(const RunView& view, std::vector<Validation>& all) {
  for (const Slice& s : view.run().slices) {
    if (s.thread != view.trainer()) continue;
    if (s.kind != SliceKind::kForward && s.kind != SliceKind::kValidation) continue;
    if (Validation* const in = around(all, s)) in->computes = std::min(in->computes, s.begin);
  }
  for (const Slice& s : view.run().slices) {
    if (s.thread != view.trainer() || s.kind != SliceKind::kEpoch) continue;
    if (Validation* const in = around(all, s); in && s.end <= in->computes) in->ends_epoch = true;
  }
}

/// Predictions for a log, or a validation, every few steps.
void detect_frequent(const RunView& view, std::vector<Validation>& all, Findings& findings) {
  const StepsView& steps = view.steps();
  if (all.size() < kFewValidations) return;
  if (all.size() * kOften < static_cast<size_t>(steps.count)) return;
  find_epochs(view, all);
  std::erase_if(all, [](const Validation& v) { return v.ends_epoch; });
  if (all.size() * kOften < static_cast<size_t>(steps.count)) return;
  double taken = 0;
  for (const Validation& v : all) taken += taken_by(v, steps);
  const double each = static_cast<double>(all.size());
  const double n = static_cast<double>(steps.count) + each;
  const double saved = taken / n, step = steps.mean + saved, share = saved / step;
  if (share < kMuchBetween) return;
  model::Finding& f = findings.add_outside(
      "stall.periodic", "Validation or predictions every few steps take much of the time", 0.85);
  f.cost_ms_per_step = saved * 1e3;
  f.between_steps = true;
  f.gain = step / (step - saved);
  f.where = calling_line(view, all);
  if (!f.where) f.where = line_within(view, all, [](const auto&, const auto&) { return true; });
  const auto count = static_cast<int64_t>(all.size());
  evidence(f, fmt::format("it takes {} of the job's time", format_percent(share)), share, "ratio",
           "timeline", count);
  evidence(f, fmt::format("every {} steps", format_number(std::round(n / each))), n / each, "steps",
           "timeline", count);
  evidence(f, fmt::format("{} each time", ms(taken / each)), taken / each * 1e3, "ms", "timeline",
           count);
  remedy(f, "less_often", "Do it less often, on fewer samples, or in another process.");
  remedy(f, "rollouts",
         "Where these are a policy's rollouts, which training needs: more environments at once, so "
         "that a forward pass serves all of them, or in processes of their own.");
}

void detect_restarts(const RunView& view, std::vector<Validation>& all, Findings& findings) {
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
    validating += taken_by(v, steps);
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
  f.where = line_within(view, all, [&](const Validation& v, const model::StackReading& r) {
    return v.starts && (view.stacks().traits(r.stack) & (kInSpawn | kInSubprocess)) != 0;
  });
  const double share = validating / n / step, each = lost / static_cast<double>(starts);
  evidence(f, fmt::format("validating takes {} of the job's time", format_percent(share)), share,
           "ratio", "timeline", static_cast<int64_t>(all.size()));
  evidence(f, fmt::format("each start of its workers costs {}", ms(each)), each * 1e3, "ms",
           "agent.loader", starts);
  remedy(f, "persistent_workers",
         "Make the validation's loader once, with persistent_workers=True, or give it no workers.");
}

}  // namespace

void detect_validation(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  std::vector<Validation> all = validations_of(view);
  if (all.size() < 2) return;
  if (!findings.has("input.worker_restart")) detect_restarts(view, all, findings);
  if (!findings.has("input.worker_restart")) detect_frequent(view, all, findings);
}

}  // namespace flatout::diagnose

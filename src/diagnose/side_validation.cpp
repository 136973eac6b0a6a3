// Validation that each step does by itself: forward passes in evaluation mode, at lines that the
// loop comes to after its backward pass. A teacher's or a generator's come before it.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/text.h"
#include "diagnose/device.h"
#include "diagnose/evaluation_passes.h"
#include "diagnose/findings.h"
#include "diagnose/side_work.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::FrameId;
using model::Slice;
using model::SliceKind;

namespace {

constexpr double kFewSteps = 0.3;   // epochs a step, from which on one hardly has any
constexpr double kMostSteps = 0.5;  // that validate: fewer are what is found between the steps
// Of a call's time, in its forward passes, from which it is there for them.
constexpr double kForThem = 0.5;
constexpr double kMostlyThere = 0.5;  // of a line's time

/// The calls of the loop's that are there for the passes, and the one that takes most of their
/// time.
struct Calls {
  FrameId frame = 0;
  std::unordered_set<FrameId> frames;
  double after = 0, all = 0;  // readings' time in passes: after the backward pass, and all
  double within = 0;          // in passes or not
  int64_t readings = 0;
};

Calls calls_of(const RunView& view, const AfterBackward& order, const EvaluationPasses& passes) {
  struct At {
    double passes = 0, all = 0;
    int64_t readings = 0;
  };
  std::unordered_map<FrameId, At> calls;
  Calls out;
  auto next = passes.slices.begin();
  for (const model::StackReading& r : view.run().readings) {
    if (r.thread != view.trainer() || r.at < view.steps().steady.front()->begin) continue;
    while (next != passes.slices.end() && (*next)->end <= r.at) ++next;
    if (next == passes.slices.end()) break;
    const bool within = (*next)->begin <= r.at;
    const FrameId call = order.call_of(r.stack);
    if (within) out.all += r.weight_us;
    if (call == 0) continue;
    At& at = calls[call];
    at.all += r.weight_us;
    at.passes += within ? r.weight_us : 0;
    ++at.readings;
  }
  double most = 0;
  for (const auto& [frame, at] : calls) {
    if (at.passes < kForThem * at.all) continue;
    out.frames.insert(frame);
    out.after += at.passes;
    out.within += at.all;
    out.readings += at.readings;
    if (at.passes < most || (at.passes == most && frame > out.frame)) continue;
    most = at.passes;
    out.frame = frame;
  }
  return out;
}

/// The lines that mostly run in such calls.
std::unordered_set<FrameId> lines_of(const RunView& view, const AfterBackward& order,
                                     const Calls& calls) {
  std::unordered_map<FrameId, std::pair<double, double>> lines;  // in the calls, all
  for (model::StackId stack = 1; stack < order.times().size(); ++stack) {
    auto& [within, all] = lines[view.stacks().user_frame(stack)];
    all += order.times()[stack];
    if (calls.frames.contains(order.call_of(stack))) within += order.times()[stack];
  }
  std::unordered_set<FrameId> out;
  for (const auto& [frame, line] : lines) {
    if (line.first > kMostlyThere * line.second) out.insert(frame);
  }
  return out;
}

}  // namespace

std::unordered_set<FrameId> detect_side_validation(const RunView& view, const AfterBackward& order,
                                                   Findings& findings) {
  const StepsView& steps = view.steps();
  const EvaluationPasses passes = evaluation_passes(view, steps.steady);
  if (static_cast<double>(passes.steps) <= kMostSteps * static_cast<double>(steps.count)) return {};
  // Of data that makes one or two steps, validation after each epoch is in most steps, too.
  const auto epochs = std::ranges::count(view.run().slices, SliceKind::kEpoch, &Slice::kind);
  if (static_cast<double>(epochs) >= kFewSteps * static_cast<double>(steps.count)) return {};
  double all = 0;
  for (const Slice* s : passes.slices) all += to_s(s->length());
  all /= static_cast<double>(steps.count);
  if (all < kMuchBetween * steps.mean) return {};
  const Calls calls = calls_of(view, order, passes);
  if (calls.readings < kFewReadings || calls.all <= 0) return {};
  const double validates = all * calls.after / calls.all;
  // Its loss and its metrics go with it; no more can be saved than a device idles or computes.
  const double cost =
      std::min(validates * calls.within / calls.after, steps.mean - steps.part(model::Part::kSync));
  if (cost < kMuchBetween * steps.mean) return {};
  Finding* f = findings.add("stall.logging", std::string(kValidationTitle), 0.85,
                            WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = cost}));
  if (f == nullptr) return {};
  f->where = view.stacks().where(calls.frame);
  evidence(*f,
           fmt::format("forward passes in evaluation mode, after the backward pass, take {} a step",
                       ms(validates)),
           validates * 1e3, "ms", "timeline", static_cast<int64_t>(passes.slices.size()));
  evidence(*f, fmt::format("with what belongs to them {} a step", ms(cost)), cost * 1e3, "ms",
           "stacks", calls.readings);
  const double each = static_cast<double>(passes.slices.size()) / static_cast<double>(steps.count);
  evidence(*f, fmt::format("{} of them a step", format_number(each)), each, "passes", "timeline",
           steps.count);
  remedy(*f, "less_often",
         "Validate every N steps, or on fewer samples; what the step's own forward pass gave need "
         "not be computed again.");
  return lines_of(view, order, calls);
}

}  // namespace flatout::diagnose

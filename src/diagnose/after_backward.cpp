#include "diagnose/after_backward.h"

#include <set>

namespace flatout::diagnose {

using model::FrameId;
using model::StackId;

namespace {

// Of the backward passes' time, that is in a function that calls them, and at a line of it.
constexpr double kMostBackward = 0.8, kALine = 0.03;

}  // namespace

/// Calls see(frame) for the user's frames of the stack, the innermost first, until it says true.
template <typename See>
void AfterBackward::each_user_frame(StackId stack, const See& see) const {
  const auto& run = view_.run();
  for (StackId at = stack; at != 0; at = run.stacks[at].parent) {
    const FrameId frame = run.stacks[at].frame;
    if (view_.stacks().owner(frame) == Owner::kUser && see(frame)) return;
  }
}

AfterBackward::AfterBackward(const RunView& view) : view_(view) {
  const auto& run = view.run();
  times_.resize(run.stacks.size());
  std::vector<double> backward(run.stacks.size());
  std::vector<std::pair<TimePoint, TimePoint>> passes;
  for (const model::Slice& s : run.slices) {
    if (s.kind != model::SliceKind::kBackward || s.thread != view.trainer()) continue;
    passes.emplace_back(s.begin, s.end);
  }
  size_t pass = 0;
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer() || r.stack >= times_.size()) continue;
    while (pass < passes.size() && passes[pass].second <= r.at) ++pass;
    const bool within = pass < passes.size() && passes[pass].first <= r.at;
    (within ? backward : times_)[r.stack] += r.weight_us;
  }
  // The functions that lead to the backward pass, with the last of their lines that do.
  std::map<Function, std::map<uint32_t, double>> callers;
  double all = 0;
  for (StackId stack = 1; stack < backward.size(); ++stack) {
    if (backward[stack] <= 0) continue;
    all += backward[stack];
    std::set<Function> seen;  // one that calls itself counts once
    each_user_frame(stack, [&](FrameId frame) {
      const model::Frame& f = run.frames[frame];
      if (seen.insert({f.file, f.function}).second) {
        callers[{f.file, f.function}][f.line] += backward[stack];
      }
      return false;
    });
  }
  for (const auto& [function, lines] : callers) {
    double sum = 0;
    for (const auto& [line, time] : lines) sum += time;
    if (sum < kMostBackward * all) continue;
    for (const auto& [line, time] : lines) {
      if (time > kALine * sum) last_[function] = line;
    }
  }
  calls_.resize(times_.size());
  for (StackId stack = 1; stack < times_.size(); ++stack) {
    if (times_[stack] > 0) calls_[stack] = find_call(stack);
  }
}

FrameId AfterBackward::find_call(StackId stack) const {
  FrameId call = 0;
  each_user_frame(stack, [&](FrameId frame) {
    const model::Frame& f = view_.run().frames[frame];
    const auto known = last_.find({f.file, f.function});
    if (known == last_.end()) return false;
    if (f.line > known->second) call = frame;
    return true;
  });
  return call;
}

}  // namespace flatout::diagnose

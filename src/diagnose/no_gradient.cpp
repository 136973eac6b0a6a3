#include "diagnose/no_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/device.h"

namespace flatout::diagnose {

using model::FrameId;
using model::Part;

namespace {

// A backward pass takes up to three times as long as its forward pass, and hardly ever less.
constexpr double kFarLonger = 3;  // the forward pass than the backward pass
constexpr double kMuch = 0.3;     // of the step, at one line

bool computes(const Cell& c) {
  return c.role == Role::kTrainer && c.act == Act::kNative && (c.traits & kNotComputing) == 0;
}
/// Gradients that are asked for in the middle (a penalty, a line search, an inner loop) are part of
/// what surrounds them.
bool computes_backward(const Cell& c) {
  return computes(c) && (c.part == Part::kBackward || (c.traits & kInGradient) != 0);
}
bool computes_forward(const Cell& c) {
  return computes(c) && c.user != 0 && !computes_backward(c) &&
         (c.part == Part::kForward || c.part == Part::kCompute);
}

/// Seconds a step in passes that the job itself makes without gradients: a teacher's, what a model
/// generates. There nothing is made that a backward pass could have gone through.
double meant_without(const RunView& view) {
  const auto& steady = view.steps().steady;
  double all = 0;
  size_t at = 0;
  for (const model::Slice& s : view.run().slices) {
    if (s.kind != model::SliceKind::kValidation || s.thread != view.trainer()) continue;
    while (at < steady.size() && steady[at]->end < s.end) ++at;
    if (at == steady.size()) break;
    if (s.begin >= steady[at]->begin) all += to_s(s.length());
  }
  return all / static_cast<double>(std::max<int64_t>(view.steps().count, 1));
}

}  // namespace

std::string work_without_gradient(const RunView& view) {
  // Elsewhere the backward pass is not seen, or not waited for.
  const bool torch = graph_operations(view.run()) > 0;
  if (!view.has_steps() || !torch || device_computes(view.run()) > 0) return "";
  const double step = view.steps().mean;
  const double meant = meant_without(view);
  const double forward = view.per_step(Role::kTrainer, computes_forward) - meant;
  const double backward = view.per_step(Role::kTrainer, computes_backward);
  if (backward <= 0 || forward < kFarLonger * backward) return "";
  std::unordered_map<FrameId, double> lines;
  FrameId most = 0;
  for (const Cell& c : view.profile().cells()) {
    if (!computes_forward(c)) continue;
    lines[c.user] += c.seconds;
    if (most == 0 || lines[c.user] > lines[most]) most = c.user;
  }
  const auto at_line = [most](const Cell& c) { return computes_forward(c) && c.user == most; };
  const double there = view.per_step(Role::kTrainer, at_line) / step;
  if (most == 0 || there - meant / step < kMuch) return "";
  return fmt::format(
      "One line{} takes {} of each step and the whole backward pass {}: no gradient goes through "
      "most of that. What is the same in each step can be made once, before the loop.",
      in_brackets(view.stacks().where(most)), format_percent(there),
      format_percent(backward / step));
}

}  // namespace flatout::diagnose

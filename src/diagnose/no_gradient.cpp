#include "diagnose/no_gradient.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/cursor.h"
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

/// Of the time at each line, the share in passes that the job itself makes without gradients: a
/// teacher's, what a model generates. There nothing is made that a backward pass could have gone
/// through.
std::unordered_map<FrameId, double> meant_without(const RunView& view) {
  Cursor<bool> passes;
  for (const model::Slice& s : view.run().slices) {
    if (s.kind == model::SliceKind::kValidation && s.thread == view.trainer())
      passes.add(s.begin, s.end, true);
  }
  passes.ready();
  std::unordered_map<FrameId, std::pair<double, double>> lines;  // in the passes, all
  for (const model::StackReading& r : view.run().readings) {
    if (r.thread != view.trainer() || r.stack >= view.run().stacks.size()) continue;
    auto& [within, all] = lines[view.stacks().user_frame(r.stack)];
    all += r.weight_us;
    if (passes.at(r.at, false)) within += r.weight_us;
  }
  std::unordered_map<FrameId, double> out;
  for (const auto& [line, time] : lines) out[line] = time.second > 0 ? time.first / time.second : 0;
  return out;
}

}  // namespace

std::string work_without_gradient(const RunView& view) {
  // Elsewhere the backward pass is not seen, or not waited for.
  const bool torch = graph_operations(view.run()) > 0;
  if (!view.has_steps() || !torch || device_computes(view.run()) > 0) return "";
  const double step = view.steps().mean;
  const double backward = view.per_step(Role::kTrainer, computes_backward);
  const double all = view.profile().seconds(computes_forward);
  if (backward <= 0 || all <= 0) return "";
  std::unordered_map<FrameId, double> meant = meant_without(view), lines;
  FrameId most = 0;
  double unmeant = 0;
  for (const Cell& c : view.profile().cells()) {
    if (!computes_forward(c)) continue;
    const double seconds = c.seconds * (1 - meant[c.user]);
    lines[c.user] += seconds;
    unmeant += seconds;
    if (most == 0 || lines[c.user] > lines[most]) most = c.user;
  }
  const double a_step = view.per_step(Role::kTrainer, computes_forward) / all;
  if (a_step * unmeant < kFarLonger * backward) return "";
  const double there = a_step * lines[most] / step;
  if (there < kMuch) return "";
  return fmt::format(
      "One line{} takes {} of each step and the whole backward pass {}: no gradient goes through "
      "most of that. What is the same in each step can be made once, before the loop.",
      in_brackets(view.stacks().where(most)), format_percent(there),
      format_percent(backward / step));
}

}  // namespace flatout::diagnose

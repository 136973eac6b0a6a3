#include "diagnose/side_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/contains.h"
#include "base/text.h"
#include "diagnose/device.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::FrameId;
using model::Part;

namespace {

// Of a line's time, what lies outside of training from which that is where it belongs; and what
// lies in steps far longer than usual, from which it is a stall and no part of every step.
constexpr double kMostlyBeside = 0.7, kSeldom = 0.8;
// Of the interpreter's time in it from which few big operations would take less.
constexpr double kMuchPython = 0.25;
// Lines that are told: so many, each with this part of it.
constexpr size_t kMostLines = 3;
constexpr double kWorthTelling = 0.1;
constexpr std::string_view kTitle = "Work beside the training takes much of each step";

/// Where a trainer calls the callbacks that it was given.
bool calls_back(std::string_view function, std::string_view file) {
  return (function == "_call_callback_hooks" && file.ends_with("/trainer/call.py")) ||
         (function == "call_event" && file.ends_with("/trainer_callback.py"));
}

/// What changes gradients or the steps to come is training, wherever it is called.
bool trains(std::string_view file) {
  return contains(file, "/torch/nn/utils/clip_grad") || contains(file, "/torch/amp/") ||
         contains(file, "/torch/cuda/amp/") || contains(file, "/torch/distributed/") ||
         contains(file, "/torch/optim/lr_scheduler");
}

}  // namespace

SideWork::SideWork(const RunView& view, const AfterBackward& order) {
  // Without a known optimizer its work may be any line's.
  if (!view.is_python() || view.steps().part(Part::kOptimizer) <= 0) return;
  look_at_stacks(view);
  look_at_order(view, order);
  struct Line {
    double all = 0, beside = 0, stalls = 0;
  };
  std::unordered_map<FrameId, Line> lines;
  for (const Cell& c : view.profile().cells()) {
    if (c.role != Role::kTrainer || c.user == 0 || !on_cpu(c.act)) continue;
    Line& line = lines[c.user];
    line.all += c.seconds;
    if (c.part == Part::kOther) line.beside += c.seconds;
    if (c.slow_step) line.stalls += c.seconds;
  }
  for (const auto& [frame, line] : lines) {
    if (line.stalls > kSeldom * line.all || trains_.contains(frame)) continue;
    const bool beside = line.beside > kMostlyBeside * line.all && after_.contains(frame);
    if (beside || callbacks_.contains(frame)) lines_.insert(frame);
  }
}

void SideWork::look_at_stacks(const RunView& view) {
  const auto& run = view.run();
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const FrameId user = view.stacks().user_frame(stack);
    if (user == 0 || callbacks_.contains(user) || trains_.contains(user)) continue;
    bool below = false;  // the user's line was passed: what follows has called it
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      const FrameId frame = run.stacks[at].frame;
      const std::string_view file = run.string(run.frames[frame].file);
      if (below && view.stacks().owner(frame) == Owner::kUser) break;
      if (below && calls_back(run.string(run.frames[frame].function), file)) {
        callbacks_.insert(user);
      }
      if (!below && trains(file)) trains_.insert(user);
      below = below || frame == user;
    }
  }
}

void SideWork::look_at_order(const RunView& view, const AfterBackward& order) {
  std::unordered_map<FrameId, std::pair<double, double>> lines;  // after it, all
  for (model::StackId stack = 1; stack < order.times().size(); ++stack) {
    const double time = order.times()[stack];
    const FrameId user = view.stacks().user_frame(stack);
    if (user == 0 || time <= 0) continue;
    auto& [after, total] = lines[user];
    total += time;
    if (order.call_of(stack) != 0) after += time;
  }
  for (const auto& [frame, line] : lines) {
    if (line.first > kMostlyBeside * line.second) after_.insert(frame);
  }
}

bool SideWork::holds(const Cell& c) const {
  return c.role == Role::kTrainer && on_cpu(c.act) && c.act != Act::kGc &&
         (c.traits & kNotComputing) == 0 && c.part != Part::kInputWait &&
         c.part != Part::kCheckpoint && c.part != Part::kBackward && lines_.contains(c.user);
}

bool is_side_work(const Finding& finding) {
  return finding.title == kTitle || finding.title == kValidationTitle;
}

Profile::Filter told_side_work(const RunView& view, const Findings& findings) {
  if (std::ranges::none_of(findings.all(), [](const Finding& f) { return f.title == kTitle; }))
    return [](const Cell&) { return false; };
  return [side = SideWork(view, AfterBackward(view))](const Cell& c) { return side.holds(c); };
}

void detect_side_work(const RunView& view, Findings& findings) {
  if (!view.has_steps() || !view.is_python()) return;
  const AfterBackward order(view);
  const std::unordered_set<FrameId> validates = detect_side_validation(view, order, findings);
  const SideWork side(view, order);
  // A line that has a cause of its own is that.
  const auto told = [&](const Cell& c) {
    return std::ranges::any_of(findings.all(), [&](const Finding& f) {
      return same_line(f.where, view.stacks().where(c.user));
    });
  };
  std::unordered_map<FrameId, double> lines;
  for (const Cell& c : view.profile().cells()) {
    if (side.holds(c) && !validates.contains(c.user) && !told(c)) lines[c.user] += c.seconds;
  }
  const auto beside = [&](const Cell& c) { return side.holds(c) && lines.contains(c.user); };
  const int64_t readings = view.readings(beside);
  if (readings < kFewReadings) return;
  // Stacks of Python that runs fast cannot always be read: what lies there is spread as the rest
  // is.
  const auto in_other = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kOther && on_cpu(c.act);
  };
  const double read =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return in_other(c) && !is_unread(c); });
  const double unread =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return in_other(c) && is_unread(c); });
  const double there =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return in_other(c) && beside(c); });
  const double all = view.per_step(Role::kTrainer, beside) + (read > 0 ? unread * there / read : 0);
  // What the step waits for a device in the end it works meanwhile; and a call that copies from the
  // device may itself be such a wait: no more can be saved than the device idles.
  const double idle = view.steps().mean * (1 - device_computes(view.run()));
  const double cost = std::min(all - view.steps().part(Part::kSync), idle);
  if (cost < kMuchBetween * view.steps().mean) return;
  Finding* f = findings.add("stall.logging", std::string(kTitle), 0.8,
                            WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = cost}));
  if (f == nullptr) return;
  f->where = view.where(beside);
  evidence(*f,
           fmt::format("between a backward pass and the next batch, or in callbacks, the training "
                       "thread works {} a step on this",
                       ms(all)),
           all * 1e3, "ms", "stacks", readings);
  std::vector<std::pair<double, FrameId>> most;
  for (const auto& [frame, seconds] : lines) most.emplace_back(seconds, frame);
  std::ranges::sort(most, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (most.size() > kMostLines) most.resize(kMostLines);
  for (const auto& [seconds, frame] : most) {
    const auto at_line = [&, line = frame](const Cell& c) { return beside(c) && c.user == line; };
    const double each = view.per_step(Role::kTrainer, at_line);
    if (each < kWorthTelling * all) break;
    const model::Where where = view.stacks().where(frame);
    evidence(*f, fmt::format("{} of it at line {} in {}", ms(each), where.line, where.function),
             each * 1e3, "ms", "stacks", view.readings(at_line));
  }
  const double python = view.per_step(
      Role::kTrainer, [&](const Cell& c) { return beside(c) && c.act == Act::kPython; });
  remedy(*f, "less_often",
         "Where no step needs it (metrics, statistics, averages, checks, copies, figures), do it "
         "every N steps, or on fewer samples.");
  if (python > kMuchPython * all) {
    evidence(*f, fmt::format("the interpreter takes {} of it", ms(python)), python * 1e3, "ms",
             "stacks", readings);
    remedy(*f, "batching", "Do the same in few big operations: vectorise, torch._foreach_*.");
  }
}

}  // namespace flatout::diagnose

// Keras' fit, evaluate and predict, called for each batch or sample: each call sets up what is for
// thousands of batches.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;

namespace {

// Calls for each step from which they are for a step's batch or less.
constexpr double kForEach = 0.3;

struct Calls {
  std::string_view name;
  double calls = 0, steps = 0;
  double a_step() const { return steps > 0 ? calls / steps : 0; }
};

/// The most frequent of them.
Calls most_called(const model::Run& run) {
  Calls out;
  for (const std::string_view name : {"fit", "predict", "evaluate"}) {
    std::string_view text = run.fact(fmt::format("keras.{}.calls", name));
    const auto calls = parse_number<double>(next_word(text));
    next_word(text);  // in
    const auto steps = parse_number<double>(next_word(text));
    if (calls && steps && *calls > out.calls) out = {name, *calls, *steps};
  }
  return out;
}

bool waits_in_graph(const Cell& c) {
  return c.role == Role::kTrainer && c.part == model::Part::kForward &&
         (c.act == Act::kLock || c.act == Act::kPoll);
}
bool works_then(const Cell& c) {
  return c.part == model::Part::kForward && (on_cpu(c.act) || c.act == Act::kRunQueue);
}

}  // namespace

void detect_fit_calls(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  const Calls most = most_called(view.run());
  if (most.a_step() < kForEach) return;
  const auto set_up = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & kInFit) != 0;
  };
  const int64_t readings = view.readings(set_up);
  if (readings < kFewReadings) return;
  const double step = view.steps().mean;
  const double read = step - view.per_step(Role::kTrainer, [&](const Cell& c) {
    return is_unread(c) && on_cpu(c.act);
  });
  const double scale = read > 0.5 * step ? step / read : 1;
  // A new pipeline has nothing ready for the call.
  const double idles =
      view.per_step(Role::kTrainer, waits_in_graph) - view.per_step(Role::kPool, works_then);
  const double cost = scale * view.per_step(Role::kTrainer, set_up) + std::max(0.0, idles);
  const double on_core = scale * view.per_step(Role::kTrainer, [&](const Cell& c) {
    return set_up(c) && on_cpu(c.act);
  });
  Finding* f = findings.add(
      "cpu.python_bound", fmt::format("Keras' {}() is called for each batch or sample", most.name),
      0.9, WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = on_core}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), fmt::format("keras.{}.called_at", most.name));
  if (!f->where) f->where = view.where(set_up);
  // What such a call does before its batch looks like the making of one.
  std::vector<std::string> same;
  for (const Finding& k : findings.all()) {
    if (k.id.starts_with("input.") && same_line(k.where, f->where)) same.push_back(k.id);
  }
  for (const std::string& id : same) findings.drop(id);
  evidence(*f, fmt::format("{} calls a step", format_number(most.a_step())), most.a_step(), "calls",
           "agent.keras", static_cast<int64_t>(most.calls));
  evidence(*f, fmt::format("setting them up takes {} a step", ms(cost)), cost * 1e3, "ms", "stacks",
           readings);
  remedy(*f, "on_batch",
         "Call train_on_batch(), test_on_batch() or predict_on_batch(), or one tf.function of your "
         "own; ask for many samples in one call.");
}

}  // namespace flatout::diagnose

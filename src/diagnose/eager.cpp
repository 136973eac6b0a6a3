// TensorFlow and JAX that run their operations one by one, from Python, where a tf.function or
// jax.jit would run all of them in one call.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/findings.h"
#include "diagnose/framework.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

constexpr double kManyOps = 50;  // a step
// Interpreter time in all of it from which operations are tiny: big ones have hardly any.
constexpr double kTiny = 0.2;
// What a tiny operation takes in native code before it computes, as a multiple of its time in the
// interpreter; and what it takes within a compiled graph.
constexpr double kNative = 0.65, kInGraph = 0.6e-6;
// The same of JAX's, whose number is not known: of what they take one by one.
constexpr double kCompiled = 0.02;
// Of the step, gradients that were taken operation by operation.
constexpr double kInBackward = 0.3;

bool runs(const Cell& c) {
  return c.role == Role::kTrainer && c.part != Part::kInputWait && c.part != Part::kCheckpoint &&
         (c.traits & kNotComputing) == 0 && (on_cpu(c.act) || c.act == Act::kRunQueue);
}

}  // namespace

void detect_eager(const RunView& view, Findings& findings) {
  if (!view.has_steps() || findings.has("cpu.python_bound")) return;
  const auto ops = parse_number<double>(view.run().fact("tensorflow.eager_ops"));
  // Within what JAX compiles gradients are traced once, and no slices.
  const bool jax = framework(view.run()) == Framework::kJax && !ops &&
                   view.steps().part(Part::kBackward) > kInBackward * view.steps().mean;
  if ((!ops || *ops < kManyOps) && !jax) return;
  if (view.readings(runs) < kFewReadings) return;
  const double all = view.per_step(Role::kTrainer, runs);
  const double python =
      view.per_step(Role::kTrainer, [](const Cell& c) { return runs(c) && c.act == Act::kPython; });
  if (python < kTiny * all) return;
  const double computes = std::max(0.0, all - (1 + kNative) * python);
  const double overhead = all - computes - (jax ? kCompiled * all : kInGraph * *ops);
  const WhatIf whatif(view);
  Finding* f = findings.add("cpu.python_bound",
                            "Operations run one by one from Python, not as a compiled graph", 0.9,
                            whatif.saved_by({.trainer = overhead, .trainer_cpu = overhead}));
  if (f == nullptr) return;
  f->where = view.where(runs);
  if (ops) {
    evidence(*f, fmt::format("{} operations a step", format_number(*ops)), *ops, "operations",
             "agent.eager", 1);
    evidence(*f, fmt::format("each takes {}", ms(all / *ops)), all / *ops * 1e6, "us", "stacks",
             view.readings(runs));
  }
  evidence(*f, fmt::format("the interpreter alone takes {} a step", ms(python)), python * 1e3, "ms",
           "stacks", view.readings(runs));
  remedy(*f, "compile",
         jax ? "Put the whole step into one function and compile it: jax.jit."
             : "Put the whole step into one tf.function; with Keras leave run_eagerly off.");
}

}  // namespace flatout::diagnose

#include "diagnose/compiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/stats.h"
#include "diagnose/framework.h"

namespace flatout::diagnose {

using model::Finding;
using model::Step;

namespace {

constexpr size_t kManyCompiles = 3;  // steps after the warm-up
// Of the steps in which it was seen, those that are short by chance.
constexpr double kShortOnes = 0.05;

bool compiles(const Cell& c) { return c.role == Role::kTrainer && (c.traits & kInCompile) != 0; }

/// The steady steps in which the training thread was seen compiling.
std::vector<const Step*> compiling_steps(const RunView& view) {
  const auto& steady = view.steps().steady;
  std::vector<const Step*> found;
  size_t at = 0;
  for (const model::StackReading& r : view.run().readings) {
    if (r.thread != view.trainer() || (view.stacks().traits(r.stack) & kInCompile) == 0) continue;
    while (at < steady.size() && steady[at]->end <= r.at) ++at;
    if (at == steady.size()) break;
    if (r.at < steady[at]->begin || (!found.empty() && found.back() == steady[at])) continue;
    found.push_back(steady[at]);
  }
  return found;
}

/// What steps take longer than the usual other one, seconds of all.
double longer_than(const std::vector<double>& others, const std::vector<double>& steps) {
  if (others.empty()) return 0;
  const double usual = median(others);
  double sum = 0;
  for (const double length : steps) sum += std::max(length - usual, 0.0);
  return sum;
}

/// Steady steps by whether they compile, as far as can be told.
struct Compiling {
  std::vector<const Step*> steps;    // in which it was seen
  std::vector<double> seen, unseen;  // seconds outside of waits for input
  // Few readings miss it in many steps: what is as long as those in which it was seen may compile.
  std::vector<double> with, others;
  /// No step goes without it: what others there are is chance.
  bool each() const {
    const double by_chance = 2 * kShortOnes * static_cast<double>(unseen.size());
    return static_cast<double>(others.size()) <= std::max(by_chance, 1.0);
  }
};

Compiling look_at_steps(const RunView& view) {
  Compiling out;
  out.steps = compiling_steps(view);
  size_t next = 0;
  for (const Step* step : view.steps().steady) {
    const bool seen = next < out.steps.size() && out.steps[next] == step;
    if (seen) ++next;
    const double length = to_s(step->length() - step->part(model::Part::kInputWait));
    (seen ? out.seen : out.unseen).push_back(length);
  }
  const double least = out.seen.empty() ? 0 : quantile(out.seen, kShortOnes);
  out.with = out.seen;
  for (const double length : out.unseen) (length < least ? out.others : out.with).push_back(length);
  return out;
}

/// Whether most of it is what calls set up that are made for each batch, and told already.
bool told_as_calls(const RunView& view, const Findings& findings) {
  if (!findings.has("cpu.python_bound")) return false;
  const double inside = view.per_step(
      Role::kTrainer, [](const Cell& c) { return compiles(c) && (c.traits & kInFit) != 0; });
  return inside > 0.5 * view.per_step(Role::kTrainer, compiles);
}

/// How many times as long as compiling it takes with its first run: what was compiled is optimised,
/// tuned and given its memory then. TensorFlow makes the graph ready for it, which takes longer
/// than to trace it.
double with_first_run(const RunView& view) {
  return framework(view.run()) == Framework::kTensorFlow ? 2.5 : 1.1;
}

/// Seconds per step of what compiles: `itself`, more where the steps show it.
double cost_of(const RunView& view, const Compiling& steps, double itself) {
  const auto all = static_cast<double>(view.steps().count);
  const double with = with_first_run(view) * itself;
  const auto calls = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == model::Part::kForward;
  };
  // Steps that are long for another reason are no part of it.
  const double missed = steps.each() ? view.per_step(Role::kTrainer, calls)
                                     : longer_than(steps.others, steps.with) / all;
  return std::max({itself, longer_than(steps.unseen, steps.seen) / all, std::min(missed, with)});
}

}  // namespace

/// For each shape or value that what was compiled is not for: one or two of them are a warm-up.
void detect_compiling(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  const int64_t readings = view.readings(compiles);
  if (readings < kFewReadings) return;
  const Compiling steps = look_at_steps(view);
  if (steps.steps.size() < kManyCompiles || told_as_calls(view, findings)) return;
  const double itself = view.per_step(Role::kTrainer, compiles);
  const double cost = cost_of(view, steps, itself);
  Finding* f = findings.add("stall.periodic", "Steps wait for what they run to be compiled again",
                            0.85, cost);
  if (f == nullptr) return;
  // The training thread works at it, and waits for nobody.
  f->gain = view.steps().mean / (view.steps().mean - *f->cost_ms_per_step * 1e-3);
  f->where = view.where(compiles);
  evidence(*f, fmt::format("compiling takes {} a step", ms(itself)), itself * 1e3, "ms", "stacks",
           readings);
  const auto n = static_cast<int64_t>(steps.steps.size());
  evidence(*f,
           fmt::format("{} of {} steps were seen compiling, the last of them step {}", n,
                       view.steps().steady.size(), steps.steps.back()->index),
           static_cast<double>(n), "steps", "stacks", readings);
  const double seen = longer_than(steps.others, steps.seen) / static_cast<double>(n);
  if (seen > 0) {
    evidence(*f, fmt::format("each of them takes {} longer", ms(seen)), seen * 1e3, "ms",
             "timeline", n);
  }
  compile_once(*f);
}

bool keeps_compiled(const RunView& view, const Findings& findings, const model::Series& memory) {
  const bool told = std::ranges::any_of(findings.all(), [](const Finding& f) {
    return !f.remedies.empty() && f.remedies.front().id == "compile_once";
  });
  if (!told) return false;
  const auto& steady = view.steps().steady;
  const auto compiling = compiling_steps(view);
  const auto ended = [](const std::vector<const Step*>& steps, TimePoint at) {
    const auto it = std::upper_bound(steps.begin(), steps.end(), at,
                                     [](TimePoint t, const Step* s) { return t < s->end; });
    return static_cast<double>(it - steps.begin());
  };
  struct Piece {
    double bytes, steps, compiling;
  };
  std::vector<Piece> pieces;
  Piece all{};
  const model::Reading* last = nullptr;
  for (const model::Reading& r : memory.readings) {
    if (r.at < steady.front()->begin || r.at > steady.back()->end) continue;
    if (last != nullptr) {
      pieces.push_back({r.value - last->value, ended(steady, r.at) - ended(steady, last->at),
                        ended(compiling, r.at) - ended(compiling, last->at)});
      all.bytes += pieces.back().bytes;
      all.steps += pieces.back().steps;
      all.compiling += pieces.back().compiling;
    }
    last = &r;
  }
  if (all.compiling == 0 || all.steps == 0) return false;
  double by_steps = 0, by_compiling = 0;  // how far off
  for (const Piece& p : pieces) {
    by_steps += std::fabs(p.bytes - all.bytes * p.steps / all.steps);
    by_compiling += std::fabs(p.bytes - all.bytes * p.compiling / all.compiling);
  }
  return by_compiling < by_steps;
}

void compile_once(Finding& finding) {
  remedy(finding, "compile_once",
         "Let few shapes and no changing Python values in: pad to a few lengths, or "
         "torch.compile(dynamic=True), tf.function(input_signature=...); in JAX call jax.jit once, "
         "outside the loop. TORCH_LOGS=recompiles or JAX_LOG_COMPILES=1 says what changed.");
}

}  // namespace flatout::diagnose

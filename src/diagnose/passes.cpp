// Validations and a policy's rollouts, pass by pass. No step waits for them, but the job does:
// where they take much of its time, they are judged as a loop of its own.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;

namespace {

double seconds_in(const std::vector<model::Step>& passes) {
  double out = 0;
  for (const model::Step& pass : passes) out += pass.judged() ? to_s(pass.length()) : 0;
  return out;
}

/// What lies between the steps, in seconds; 0 where it is not much of the time.
double much_between(const RunView& view) {
  if (!view.has_steps()) return 0;
  const double between = seconds_in(view.run().steps.passes);
  return between < kMuchBetween * (view.steps().total + between) ? 0 : between;
}

constexpr double kWorthAWord = 1.02;  // of the whole time

/// Whether what lies between the steps is as slow for it as they are.
bool slows_all(std::string_view id) {
  constexpr std::string_view kIds[] = {
      "cpu.half_precision", "cpu.float64",         "cpu.denormals",
      "cpu.tracing",        "cpu.noisy_neighbour", "cpu.throttled",
      "cpu.oversubscribed", "cpu.affinity",        "gpu.throttled"};
  return std::ranges::find(kIds, id) != std::end(kIds);
}

}  // namespace

std::vector<Finding> find_in_passes(const RunView& view) {
  const double between = much_between(view);
  if (between <= 0) return {};
  const double all = view.steps().total + between, share = between / all;
  model::Run loop = view.run();
  loop.steps.steps = std::move(loop.steps.passes);
  loop.steps.passes.clear();
  const RunView passes(loop);
  if (!passes.has_steps()) return {};
  Findings findings(passes);
  detect_input(passes, findings);
  detect_stalls(passes, findings);
  detect_interpreter(passes, findings);
  std::vector<Finding> out;
  for (Finding& f : findings.take()) {
    if (!f.cost_ms_per_step || f.between_steps || f.gain.value_or(0) <= 1) continue;
    const double saved = between * (1 - 1 / *f.gain);
    if (saved < kWorthSaying * all) continue;
    f.title = "Between the steps: " + f.title;
    f.between_steps = true;
    f.cost_ms_per_step = saved / static_cast<double>(view.steps().count) * 1e3;
    f.gain = all / (all - saved);
    std::vector<model::Evidence> told = std::exchange(f.evidence, {});
    evidence(f,
             fmt::format("passes without training (validation, rollouts) take {} of the job's "
                         "time; what is said here of a step is said of one of these",
                         format_percent(share)),
             share, "ratio", "timeline", passes.steps().count);
    f.evidence.insert(f.evidence.end(), std::make_move_iterator(told.begin()),
                      std::make_move_iterator(told.end()));
    out.push_back(std::move(f));
  }
  return out;
}

void spread_gains(const RunView& view, std::vector<Finding>& findings) {
  const double between = much_between(view);
  if (between <= 0) return;
  const double steps = view.steps().total, all = steps + between;
  for (Finding& f : findings) {
    if (f.between_steps || slows_all(f.id) || f.gain.value_or(0) <= 1) continue;
    f.gain = all / (all - steps * (1 - 1 / *f.gain));
  }
  std::erase_if(findings, [](const Finding& f) {
    return !f.between_steps && !f.ended_the_job && f.gain && *f.gain < kWorthAWord;
  });
}

}  // namespace flatout::diagnose

#include "diagnose/onset.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using model::Finding;
using model::StackReading;

namespace {

constexpr size_t kEnough = 20;  // readings at a line
// Of the time at it, what may lie before it began; of the run, how late that is at least.
constexpr double kHardly = 0.02, kLate = 0.25;

/// The step in which the time at the line begins; nullptr: it was there from the start.
const model::Step* onset(const RunView& view, const model::Where& line, int64_t& readings) {
  const auto& steady = view.steps().steady;
  std::vector<std::pair<const model::Step*, double>> times;
  std::unordered_map<model::FrameId, bool> there;
  double all = 0;
  size_t at = 0;
  for (const StackReading& r : view.run().readings) {
    if (r.thread != view.trainer()) continue;
    while (at < steady.size() && steady[at]->end <= r.at) ++at;
    if (at == steady.size()) break;
    if (r.at < steady[at]->begin) continue;
    const model::FrameId user = view.stacks().user_frame(r.stack);
    if (user == 0) continue;
    const auto [known, added] = there.try_emplace(user);
    if (added) known->second = same_line(line, view.stacks().where(user));
    if (!known->second) continue;
    times.emplace_back(steady[at], r.weight_us);
    all += r.weight_us;
  }
  readings = static_cast<int64_t>(times.size());
  if (times.size() < kEnough) return nullptr;
  double before = 0;
  for (const auto& [step, weight] : times) {
    before += weight;
    if (before <= kHardly * all) continue;
    const TimePoint begin = steady.front()->begin;
    return step->begin - begin < kLate * (steady.back()->end - begin) ? nullptr : step;
  }
  return nullptr;
}

}  // namespace

void tell_onsets(const RunView& view, std::vector<Finding>& findings) {
  if (!view.has_steps()) return;
  for (Finding& f : findings) {
    if (!f.cost_ms_per_step || !f.where || f.between_steps || f.ended_the_job) continue;
    int64_t readings = 0;
    const model::Step* first = onset(view, *f.where, readings);
    if (first == nullptr) continue;
    evidence(f,
             fmt::format("that line takes time from step {} on, {} after the start", first->index,
                         format_duration(first->begin - view.run().begin)),
             static_cast<double>(first->index), "step", "stacks", readings);
  }
}

}  // namespace flatout::diagnose

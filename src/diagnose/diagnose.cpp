#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using model::Diagnosis;
using model::Finding;
using model::Run;
using model::SpeedChange;

namespace {

std::vector<Finding> find_all(const RunView& view, bool with_ends) {
  Findings findings(view);
  if (with_ends) {
    detect_crash(view, findings);
    detect_hang(view, findings);
  }
  detect_input(view, findings);
  detect_stalls(view, findings);
  detect_cpu(view, findings);
  detect_memory(view, findings);
  detect_periodic(view, findings);
  return std::move(findings.all());
}

void rank(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    if (a.ended_the_job != b.ended_the_job) return a.ended_the_job;
    return a.gain.value_or(0) > b.gain.value_or(0);
  });
}

/// The change after which the job was slowest; nullptr without one that matters.
const SpeedChange* slow_down(const Run& run) {
  const SpeedChange* worst = nullptr;
  for (const SpeedChange& c : run.steps.changes) {
    if (to_s(c.after) < 1.15 * to_s(c.before)) continue;
    if (worst == nullptr || c.after - c.before > worst->after - worst->before) worst = &c;
  }
  return worst;
}

std::string headline_of(const Run& run, const Diagnosis& d, const SpeedChange* change,
                        const Finding* changed_by) {
  if (change != nullptr) {
    std::string text =
        fmt::format("From step {} on ({} after the start) steps take {} instead of {}",
                    change->index, format_duration(change->at - run.begin),
                    format_duration(change->after), format_duration(change->before));
    if (changed_by != nullptr) text += ": " + changed_by->title;
    return text + ".";
  }
  if (d.findings.empty()) {
    return d.verdict == "none" ? "Not enough steps to judge yet."
                               : "Nothing costs more than 5 % of the step.";
  }
  const Finding& first = d.findings.front();
  std::string text = first.title;
  if (first.cost_ms_per_step) {
    text += fmt::format(": {} of each step", format_duration(nanos(*first.cost_ms_per_step * 1e6)));
  }
  return text + ".";
}

}  // namespace

Diagnosis diagnose(const Run& run) {
  Diagnosis out;
  const RunView view(run);
  out.findings = find_all(view, true);
  const SpeedChange* change = slow_down(run);
  std::string changed_id;
  if (change != nullptr && view.has_steps()) {
    int64_t until = INT64_MAX;
    for (const SpeedChange& c : run.steps.changes) {
      if (c.index > change->index && to_s(c.after) < 0.9 * to_s(change->after)) {
        until = std::min(until, c.index);
      }
    }
    const RunView slow(run, change->index, until), fast(run, INT64_MIN, change->index);
    std::vector<Finding> before = find_all(fast, false), after = find_all(slow, false);
    double most = 0;
    for (Finding& f : after) {
      const auto same = std::find_if(before.begin(), before.end(),
                                     [&](const Finding& b) { return b.id == f.id; });
      const double was = same == before.end() ? 0 : same->cost_ms_per_step.value_or(0);
      const double more = f.cost_ms_per_step.value_or(0) - was;
      if (more > most) {
        most = more;
        changed_id = f.id;
      }
      const auto known = std::find_if(out.findings.begin(), out.findings.end(),
                                      [&](const Finding& k) { return k.id == f.id; });
      if (known != out.findings.end() || !f.cost_ms_per_step) continue;
      // Its cost spread over all steps, fast ones too.
      const double share = static_cast<double>(slow.steps().count) /
                           static_cast<double>(std::max<int64_t>(view.steps().count, 1));
      const double cost = *f.cost_ms_per_step * share, step = view.steps().mean * 1e3;
      if (cost < kWorthSaying * step || cost >= step) continue;
      f.cost_ms_per_step = cost;
      f.gain = step / (step - cost);
      out.findings.push_back(std::move(f));
    }
  }
  rank(out.findings);
  const Finding* changed_by = nullptr;
  for (const Finding& f : out.findings) {
    if (f.id == changed_id) changed_by = &f;
  }
  if (!out.findings.empty()) {
    out.verdict = out.findings.front().id;
  } else if (!view.has_steps() && !run.finished) {
    out.verdict = "none";
  }
  const bool ended = !out.findings.empty() && out.findings.front().ended_the_job;
  out.headline = headline_of(run, out, ended ? nullptr : change, changed_by);
  return out;
}

}  // namespace flatout::diagnose

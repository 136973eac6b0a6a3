#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/denormals.h"
#include "diagnose/environment.h"
#include "diagnose/few_threads.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/no_gradient.h"
#include "diagnose/onset.h"
#include "diagnose/slow_down.h"
#include "diagnose/unfused_optimizer.h"

namespace flatout::diagnose {

using model::Diagnosis;
using model::Finding;
using model::Run;

namespace {

// A job that trains has begun to step by then.
constexpr double kStartUp = 30.0;

/// Whether a job that still runs is too young for anything but a crash: it starts up.
bool too_early(const RunView& view) {
  const Run& run = view.run();
  if (run.finished || view.has_steps()) return false;
  return view.steps().seen > 0 || to_s(run.end - run.begin) < kStartUp;
}

std::vector<Finding> find_all(const RunView& view, bool with_ends) {
  Findings findings(view);
  if (with_ends) {
    detect_crash(view, findings);
    detect_hang(view, findings);
  }
  if (too_early(view)) return findings.take();
  detect_input(view, findings);
  detect_validation(view, findings);
  detect_stalls(view, findings);
  detect_device(view, findings);
  detect_cpu(view, findings);
  detect_precision(view, findings);
  detect_padding(view, findings);
  detect_retained(view, findings);
  detect_side_work(view, findings);
  detect_interpreter(view, findings);
  detect_watchers(view, findings);
  detect_processes(view, findings);
  detect_allocator(view, findings);
  detect_lock(view, findings);
  detect_memory(view, findings);
  detect_stolen(view, findings);
  detect_late_batches(view, findings);
  detect_periodic(view, findings);
  return findings.take();
}

// A slow-down is worth a word without a known cause from here on.
constexpr double kMuchSlower = 1.3;

/// Why a run without findings cannot be called healthy; "": it can.
std::string unjudged(const RunView& view) {
  if (const std::string damage = view.run().damage(); !damage.empty()) {
    return "The recording is incomplete, so there is no verdict: " + damage + ".";
  }
  if (!view.has_steps()) {
    if (!view.run().finished) return "Not enough steps to judge yet.";
    return view.steps().count > 0
               ? "Too few steps to judge their speed; nothing else stands out."
               : "No steps were recognised, so their speed is not known; nothing else stands out.";
  }
  constexpr double kMuchWait = 0.2;  // of the step
  const double wait = view.steps().part(model::Part::kInputWait) / view.steps().mean;
  if (wait > kMuchWait &&
      view.readings([&](const Cell& c) { return makes_batches(view, c); }) < kFewReadings) {
    return fmt::format(
        "The steps wait for input {} of their time, and too little was seen of what makes it to "
        "name the cause.",
        format_percent(wait));
  }
  return "";
}

/// `changed_by`: what made the job slower, nullptr where that is not known; `place`: where it did.
std::string headline_of(const Run& run, const Diagnosis& d, const SlowDown& slow,
                        const Finding* changed_by, const std::string& place,
                        const std::string& not_judged) {
  if (slow.known && changed_by != nullptr) {
    return change_text(run, slow) + ": " + changed_by->title + ".";
  }
  const bool unexplained = slow.known && slow.after > kMuchSlower * slow.before;
  if (d.findings.empty()) {
    if (!not_judged.empty()) return not_judged;
    if (run.finished && run.wait_status > 0) {
      return "No cause shows: until it ended nothing cost more than 5 % of the step.";
    }
    std::string text = "Healthy: nothing costs more than 5 % of the step.";
    if (!unexplained) return text;
    return change_text(run, slow) + place + ", and no cause shows. " + text;
  }
  const Finding& first = d.findings.front();
  std::string text = first.title;
  if (first.cost_ms_per_step) {
    const char* const whose = first.between_steps ? "for" : "of";
    const Nanos cost = nanos(*first.cost_ms_per_step * 1e6);
    text += fmt::format(": {} {} each step", format_duration(cost), whose);
  }
  return text + ".";
}

/// What is found between the steps, which may say better why that takes so long.
void add_of_passes(const RunView& view, std::vector<Finding>& findings) {
  for (Finding& f : find_in_passes(view)) {
    std::erase_if(findings, [&](const Finding& k) {
      return k.id == "stall.periodic" && k.between_steps &&
             *k.cost_ms_per_step < 2 * *f.cost_ms_per_step;
    });
    const Finding* const told = already_told(findings, f);
    const bool more = told == nullptr || told->cost_ms_per_step.value_or(0) < *f.cost_ms_per_step;
    if (told == nullptr || (more && !told->between_steps && !same_line(told->where, f.where))) {
      findings.push_back(std::move(f));
    } else if (more) {
      findings[static_cast<size_t>(told - findings.data())] = std::move(f);
    }
  }
}

/// What a healthy job, too, may like to know.
std::string remarks(const RunView& view) {
  std::string out;
  for (const std::string& text : {few_threads(view), unfused_optimizer(view),
                                  work_without_gradient(view), environment_remark(view.run())}) {
    if (!text.empty()) out += (out.empty() ? "" : " ") + text;
  }
  return out;
}

}  // namespace

Diagnosis diagnose(const Run& run) {
  Diagnosis out;
  const RunView view(run);
  out.findings = find_all(view, true);
  SlowDown slowed = slow_down(run);
  PutDownTo changed;
  if (slowed.known && view.has_steps()) {
    const auto find = [](const RunView& part) { return find_all(part, false); };
    changed = judge_slow_down(view, slowed, find, out.findings);
  } else if (std::optional<Finding> tiny = find_denormals(view, nullptr, nullptr)) {
    out.findings.push_back(std::move(*tiny));
  }
  if (!slowed.known) tell_onsets(view, out.findings);  // else the change of speed says it
  add_of_passes(view, out.findings);
  spread_gains(view, out.findings);
  sort_by_gain(out.findings);
  const Finding* changed_by = nullptr;
  for (Finding& f : out.findings) {
    if (f.id != changed.id || f.between_steps) continue;
    changed_by = &f;
    if (changed.line) f.where = changed.line;
  }
  if (!out.findings.empty()) {
    out.verdict = out.findings.front().id;
  } else if ((!view.has_steps() && !run.finished) || !run.damage().empty()) {
    out.verdict = "none";
  }
  const bool ended = !out.findings.empty() && out.findings.front().ended_the_job;
  if (ended) slowed = {};
  const std::string not_judged = out.findings.empty() ? unjudged(view) : "";
  out.judged = not_judged.empty();
  out.headline = headline_of(run, out, slowed, changed_by, changed.place, not_judged);
  if (ended || !out.judged) return out;
  out.remark = remarks(view);
  if (!out.remark.empty()) out.headline += " " + out.remark;
  return out;
}

}  // namespace flatout::diagnose

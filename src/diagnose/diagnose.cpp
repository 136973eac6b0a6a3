#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/denormals.h"
#include "diagnose/environment.h"
#include "diagnose/few_threads.h"
#include "diagnose/findings.h"
#include "diagnose/growing.h"
#include "diagnose/input.h"
#include "diagnose/no_gradient.h"
#include "diagnose/onset.h"
#include "diagnose/side_work.h"
#include "diagnose/unfused_optimizer.h"

namespace flatout::diagnose {

using model::Diagnosis;
using model::Finding;
using model::Run;
using model::SpeedChange;

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

// A level of speed counts as slow when it is this far above all that came before, and as worth a
// word without a known cause when it is further.
constexpr double kSlower = 1.15, kMuchSlower = 1.3;

/// Steps from one change of speed to another, or the last quarter of steps that take longer little
/// by little.
struct SlowDown {
  bool known = false;         // or the job did not slow down
  bool gradual = false;       // the first quarter's steps are the fast ones
  int64_t fast_until = 0;     // steps before this one are fast,
  int64_t from = 0;           // from this one on slow,
  int64_t until = INT64_MAX;  // and fast again from this one on
  TimePoint at;               // when they began to be slow
  Nanos before{}, after{};
};

/// The first and the last quarter of steps that drift to longer ones.
SlowDown drifted(const Run& run) {
  std::vector<int64_t> judged;
  for (const model::Step& s : run.steps.steps) {
    if (s.judged()) judged.push_back(s.index);
  }
  const auto& drift = run.steps.drift;
  if (!drift || judged.empty() || to_s(drift->last) < kSlower * to_s(drift->first)) return {};
  return {.known = true,
          .gradual = true,
          .fast_until = judged[judged.size() / 4],
          .from = judged[judged.size() * 3 / 4],
          .at = {},
          .before = drift->first,
          .after = drift->last};
}

/// The change that cost the job most: from the usual speed before it to a slower one that lasts.
SlowDown slow_down(const Run& run) {
  const auto& changes = run.steps.changes;
  if (changes.empty() || run.steps.steps.empty()) return drifted(run);
  std::vector<double> before;  // lengths of the steps before a change
  size_t next = 0;
  SlowDown worst;
  double most = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const SpeedChange& c = changes[i];
    for (; next < run.steps.steps.size() && run.steps.steps[next].index < c.index; ++next) {
      const model::Step& s = run.steps.steps[next];
      if (s.judged()) before.push_back(to_s(s.length()));
    }
    if (before.empty()) continue;
    const double usual = median(before), after = to_s(c.after);
    if (after < kSlower * usual) continue;
    int64_t until = INT64_MAX;
    for (size_t k = i + 1; k < changes.size() && until == INT64_MAX; ++k) {
      if (to_s(changes[k].after) < kSlower * usual) until = changes[k].index;
    }
    const int64_t last = std::min(until, run.steps.steps.back().index + 1);
    const double lost = static_cast<double>(last - c.index) * (after - usual);
    if (lost <= most) continue;
    most = lost;
    worst = {.known = true,
             .fast_until = c.index,
             .from = c.index,
             .until = until,
             .at = c.at,
             .before = nanos(usual * 1e9),
             .after = c.after};
  }
  return worst;
}

std::string change_text(const Run& run, const SlowDown& slow) {
  if (slow.gradual) {
    return fmt::format("Steps get longer little by little, from {} at the start to {} at the end",
                       format_duration(slow.before), format_duration(slow.after));
  }
  return fmt::format("From step {} on ({} after the start) steps take {} instead of {}", slow.from,
                     format_duration(slow.at - run.begin), format_duration(slow.after),
                     format_duration(slow.before));
}

/// Where most of that time goes: at a line, or in which parts of the step; "": it is not known.
std::string place_text(const RunView& fast, const RunView& slow,
                       const std::optional<LongerLine>& line) {
  if (line) {
    return fmt::format(", most of it at {}:{} in {}",
                       escape_terminal(line->where.file.substr(line->where.file.rfind('/') + 1)),
                       line->where.line, escape_terminal(line->where.function));
  }
  constexpr double kMuch = 0.25;  // of it
  const double more = slow.steps().mean - fast.steps().mean;
  std::string out;
  for (size_t p = 0; p < model::kPartCount && more > 0; ++p) {
    const auto part = static_cast<model::Part>(p);
    if (slow.steps().part(part) - fast.steps().part(part) < kMuch * more) continue;
    std::string name(model::name(part));
    std::ranges::replace(name, '_', ' ');
    out += (out.empty() ? ", most of it in " : " and ") + name;
  }
  return out;
}

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

std::string headline_of(const Run& run, const Diagnosis& d, const SlowDown& slow,
                        const Finding* changed_by, const std::string& longer_at,
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
    return change_text(run, slow) + longer_at + ", and no cause shows. " + text;
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

/// The finding that stands for this one: of the same cause, or for the same line's part of the
/// input, which the whole run may show in another light than its slow steps. nullptr: none.
const Finding* already_told(const std::vector<Finding>& findings, const Finding& f) {
  for (const Finding& k : findings) {
    const bool input = k.id.starts_with("input.") && f.id.starts_with("input.");
    if (k.id == f.id || (input && same_line(k.where, f.where))) return &k;
  }
  return nullptr;
}

/// Without what changed the job is at most as fast as it was before. `was`: what it cost then, in
/// ms a step. `alone`: nothing else changed, so that neighbours take all of it, what they do to
/// caches and to those who wait for a thread that waits, too.
void keep_to_change(const RunView& view, const RunView& fast, double was, bool alone, Finding& f) {
  const double step = view.steps().mean * 1e3;
  const double most = step - fast.steps().mean * 1e3 + was;
  if (!f.cost_ms_per_step || f.between_steps || most < kWorthSaying * step || most >= step) return;
  const bool all = alone && f.id == "cpu.noisy_neighbour";
  if (*f.cost_ms_per_step <= most && !all) return;
  f.cost_ms_per_step = most;
  f.gain = step / (step - most);
}

/// Whether a finding says what is written or kept at its line, rather than how long that computes.
bool says_what_for(const Finding& f) {
  return f.id.starts_with("mem.") || f.id == "stall.checkpoint" || f.id == "cpu.gc" ||
         f.id == "cpu.retained_graph" || f.id == "cpu.process_churn" ||
         (f.id == "stall.logging" && !is_side_work(f));
}

/// Work that grows: a finding of its own, which then is what changed, in the place of one that says
/// no more of that line than that it computes; one that does says how it grows.
void tell_growth(const RunView& view, const LongerLine& line, std::vector<Finding>& findings,
                 std::string& changed_id) {
  const auto at_line = [&](const Finding& f) { return same_line(f.where, line.where); };
  const auto told = std::ranges::find_if(findings, [&](const Finding& f) {
    return at_line(f) && f.cost_ms_per_step && says_what_for(f);
  });
  std::optional<Finding> own = growing_work(view, line);
  if (told != findings.end()) {
    add_growth(*told, line);
    changed_id = told->id;
    if (own && *own->cost_ms_per_step > *told->cost_ms_per_step) {
      told->cost_ms_per_step = own->cost_ms_per_step;  // to make what is written grows, too
      told->gain = own->gain;
    }
    return;
  }
  if (!own) return;
  std::erase_if(findings, [&](const Finding& f) {
    const bool computes =
        f.id == "cpu.python_bound" || f.id == "input.decode_cpu" || is_side_work(f);
    return computes && at_line(f) && f.cost_ms_per_step.value_or(0) < 2 * *own->cost_ms_per_step;
  });
  changed_id = own->id;
  findings.push_back(std::move(*own));
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

}  // namespace

Diagnosis diagnose(const Run& run) {
  Diagnosis out;
  const RunView view(run);
  out.findings = find_all(view, true);
  SlowDown slowed = slow_down(run);
  std::string changed_id;
  std::optional<model::Where> grown;  // the line behind it, where that is most of what it costs now
  std::string longer_at;
  if (slowed.known && view.has_steps()) {
    const RunView fast(run, INT64_MIN, slowed.fast_until);
    const RunView slow(run, slowed.from, slowed.until, &fast);
    std::vector<Finding> before = find_all(fast, false), after = find_all(slow, false);
    double most = 0, changed_was = 0, all_more = 0;
    for (Finding& f : after) {
      const auto same = std::find_if(before.begin(), before.end(),
                                     [&](const Finding& b) { return b.id == f.id; });
      const double was = same == before.end() ? 0 : same->cost_ms_per_step.value_or(0);
      const double more = f.cost_ms_per_step.value_or(0) - was;
      const Finding* known = already_told(out.findings, f);
      all_more += std::max(more, 0.0);
      if (more > most && !f.between_steps) {
        most = more;
        changed_was = was;
        changed_id = known != nullptr ? known->id : f.id;
        grown = more > 0.5 * *f.cost_ms_per_step ? f.where : std::nullopt;
      }
      if (known != nullptr || !f.cost_ms_per_step) continue;
      // Its cost spread over all steps, fast ones too.
      const double share = slowed.gradual
                               ? (1 + was / *f.cost_ms_per_step) / 2
                               : static_cast<double>(slow.steps().count) /
                                     static_cast<double>(std::max<int64_t>(view.steps().count, 1));
      const double cost = *f.cost_ms_per_step * share, step = view.steps().mean * 1e3;
      if (cost < kWorthSaying * step || cost >= step) continue;
      f.cost_ms_per_step = cost;
      f.gain = step / (step - cost);
      out.findings.push_back(std::move(f));
    }
    const double slower = (slow.steps().mean - fast.steps().mean) * 1e3;
    const bool alone = most > 0.5 * slower && all_more - most < 0.1 * slower;
    for (Finding& f : out.findings) {
      if (f.id == changed_id && !slowed.gradual) keep_to_change(view, fast, changed_was, alone, f);
    }
    const std::optional<LongerLine> longer = longer_line(fast, slow);
    longer_at = place_text(fast, slow, longer);
    std::optional<Finding> tiny = find_denormals(view, &fast, &slow);
    const bool elsewhere = longer && !(tiny && same_line(tiny->where, longer->where));
    if (tiny && (longer ? !elsewhere : most < 0.5 * slower)) changed_id = tiny->id;
    // Where another line grows, it may be that which makes kernels slower, too.
    if (elsewhere) tiny = find_denormals(view, nullptr, nullptr);
    if (tiny) out.findings.push_back(std::move(*tiny));
    if (elsewhere && slowed.gradual && !longer->with_model)
      tell_growth(view, *longer, out.findings, changed_id);
  } else if (std::optional<Finding> tiny = find_denormals(view, nullptr, nullptr)) {
    out.findings.push_back(std::move(*tiny));
  }
  if (!slowed.known) tell_onsets(view, out.findings);  // else the change of speed says it
  add_of_passes(view, out.findings);
  spread_gains(view, out.findings);
  sort_by_gain(out.findings);
  const Finding* changed_by = nullptr;
  for (Finding& f : out.findings) {
    if (f.id != changed_id || f.between_steps) continue;
    changed_by = &f;
    if (grown) f.where = grown;
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
  out.headline = headline_of(run, out, slowed, changed_by, longer_at, not_judged);
  if (ended || !out.judged) return out;
  for (const std::string& text : {few_threads(view), unfused_optimizer(view),
                                  work_without_gradient(view), environment_remark(run)}) {
    if (!text.empty()) out.remark += (out.remark.empty() ? "" : " ") + text;
  }
  if (!out.remark.empty()) out.headline += " " + out.remark;
  return out;
}

}  // namespace flatout::diagnose

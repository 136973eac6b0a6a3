#include "diagnose/slow_down.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/denormals.h"
#include "diagnose/findings.h"
#include "diagnose/growing.h"
#include "diagnose/side_work.h"

namespace flatout::diagnose {

using model::Finding;
using model::Run;
using model::SpeedChange;

namespace {

// A level of speed counts as slow when it is this far above all that came before.
constexpr double kSlower = 1.15;

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

/// What costs more in the slow steps than it did in the fast ones, in ms a step.
struct Risen {
  std::string id;                    // of what costs most more, as it is told
  std::optional<model::Where> line;  // of it, where that is most of what it costs now
  double more = 0, was = 0;          // of that
  double all = 0;                    // more, of all of them
};

/// Its cost in slow steps (`was`: in fast ones) spread over all steps; false where that is not
/// worth saying.
bool spread_cost(const RunView& view, const RunView& slow, bool gradual, double was, Finding& f) {
  const auto steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const double share = gradual ? (1 + was / *f.cost_ms_per_step) / 2
                               : static_cast<double>(slow.steps().count) / steps;
  const double cost = *f.cost_ms_per_step * share, step = view.steps().mean * 1e3;
  if (cost < kWorthSaying * step || cost >= step) return false;
  f.cost_ms_per_step = cost;
  f.gain = step / (step - cost);
  return true;
}

/// Adds to the findings of the whole run what only the slow steps show.
Risen add_risen(const RunView& view, const RunView& slow, bool gradual,
                const std::vector<Finding>& before, std::vector<Finding> after,
                std::vector<Finding>& all) {
  Risen out;
  for (Finding& f : after) {
    const auto same = std::ranges::find(before, f.id, &Finding::id);
    const double was = same == before.end() ? 0 : same->cost_ms_per_step.value_or(0);
    const double more = f.cost_ms_per_step.value_or(0) - was;
    const Finding* known = already_told(all, f);
    out.all += std::max(more, 0.0);
    if (more > out.more && !f.between_steps) {
      out.more = more;
      out.was = was;
      out.id = known != nullptr ? known->id : f.id;
      out.line = more > 0.5 * *f.cost_ms_per_step ? f.where : std::nullopt;
    }
    if (known != nullptr || !f.cost_ms_per_step) continue;
    if (spread_cost(view, slow, gradual, was, f)) all.push_back(std::move(f));
  }
  return out;
}

}  // namespace

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

const Finding* already_told(const std::vector<Finding>& findings, const Finding& f) {
  for (const Finding& k : findings) {
    const bool input = k.id.starts_with("input.") && f.id.starts_with("input.");
    if (k.id == f.id || (input && same_line(k.where, f.where))) return &k;
  }
  return nullptr;
}

PutDownTo judge_slow_down(const RunView& view, const SlowDown& slowed,
                          const std::function<std::vector<Finding>(const RunView&)>& find,
                          std::vector<Finding>& all) {
  const Run& run = view.run();
  const RunView fast(run, INT64_MIN, slowed.fast_until);
  const RunView slow(run, slowed.from, slowed.until, &fast);
  const Risen risen = add_risen(view, slow, slowed.gradual, find(fast), find(slow), all);
  PutDownTo out{.id = risen.id, .line = risen.line, .place = {}};
  const double slower = (slow.steps().mean - fast.steps().mean) * 1e3;
  const bool alone = risen.more > 0.5 * slower && risen.all - risen.more < 0.1 * slower;
  for (Finding& f : all) {
    if (f.id == out.id && !slowed.gradual) keep_to_change(view, fast, risen.was, alone, f);
  }
  const std::optional<LongerLine> longer = longer_line(fast, slow);
  out.place = place_text(fast, slow, longer);
  std::optional<Finding> tiny = find_denormals(view, &fast, &slow);
  const bool elsewhere = longer && !(tiny && same_line(tiny->where, longer->where));
  if (tiny && (longer ? !elsewhere : risen.more < 0.5 * slower)) out.id = tiny->id;
  // Where another line grows, it may be that which makes kernels slower, too.
  if (elsewhere) tiny = find_denormals(view, nullptr, nullptr);
  if (tiny) all.push_back(std::move(*tiny));
  if (elsewhere && slowed.gradual && !longer->with_model) tell_growth(view, *longer, all, out.id);
  return out;
}

}  // namespace flatout::diagnose

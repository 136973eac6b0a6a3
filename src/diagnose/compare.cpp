#include "diagnose/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/compare_machine.h"
#include "diagnose/compare_steps.h"
#include "diagnose/diagnose.h"
#include "diagnose/environment.h"
#include "diagnose/fact_kinds.h"

namespace flatout::diagnose {

using model::Change;
using model::Comparison;
using model::Finding;
using model::FindingChange;
using model::Part;
using model::PartChange;
using model::Reason;
using model::Run;

namespace {

// A reason for less of what a part moved is not what it moved for.
constexpr double kMostOfIt = 0.5;
// A part that moved by less of the difference needs no reason.
constexpr double kWorthAReason = 0.05;
// A finding of both runs is a reason where its cost moved by more than this.
constexpr double kMoved = 0.2;
constexpr int64_t kFewest = 5;  // steps that a run must have to be compared

/// Whether the run tells any fact of a group: what an older recording could not tell is no change.
bool tells(const Run& run, const std::string& group) {
  const auto first = run.info.lower_bound(group);
  return first != run.info.end() && first->first.starts_with(group);
}

std::string shown(const std::string& key, const std::string& value) {
  const auto bytes = key.ends_with("_bytes") ? parse_number<double>(value) : std::nullopt;
  return bytes ? format_bytes(*bytes) : value;
}

/// A file that only one run has was not seen in the other: nothing runs it there unless another
/// file changed, too.
bool is_unseen_file(const std::string& key, const std::string& before, const std::string& now) {
  return key.starts_with("code.hash.") && (before.empty() || now.empty());
}

/// A container's host name is drawn anew each time.
bool is_drawn_name(const Run& run) {
  const std::string_view kind = run.fact("container.kind");
  return kind == "docker" || kind == "podman" || kind == "kubernetes";
}

/// Of two command lines the words from the first that differs on.
void leave_out_common_start(std::string& a, std::string& b) {
  size_t word = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) {
    if (a[i] == ' ') word = i + 1;
  }
  if (word == 0) return;
  for (std::string* text : {&a, &b}) *text = text->size() > word ? "... " + text->substr(word) : "";
}

void compare_facts(const Run& a, const Run& b, Comparison& out) {
  std::set<std::string> keys;
  for (const Run* run : {&a, &b}) {
    for (const auto& fact : run->info) keys.insert(fact.first);
  }
  for (const std::string& key : keys) {
    std::string before = shown(key, std::string(a.fact(key)));
    std::string now = shown(key, std::string(b.fact(key)));
    if (before == now) continue;
    if (key == "command") leave_out_common_start(before, now);
    const bool measured = std::any_of(out.changes.begin(), out.changes.end(),
                                      [&](const Change& c) { return c.what == key; });
    if (measured) continue;
    const auto kind = fact_kind(key);
    const bool explains =
        kind && (kind->group.empty() || (tells(a, kind->group) && tells(b, kind->group))) &&
        !is_unseen_file(key, before, now) &&
        !(key == "host.name" && (is_drawn_name(a) || is_drawn_name(b)));
    (explains ? out.changes : out.other).push_back({key, before, now, {}, {}});
  }
}

void name_and_sort(std::vector<Change>& changes) {
  std::vector<std::pair<std::tuple<double, size_t>, Change>> ranked;
  for (Change& c : changes) {
    const auto kind = fact_kind(c.what);
    c.text = kind ? kind->text : c.what;
    const double share = std::fabs(c.share_ms.value_or(0));
    ranked.emplace_back(std::tuple(-share, kind ? kind->rank : SIZE_MAX), std::move(c));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& l, const auto& r) { return l.first < r.first; });
  for (size_t i = 0; i < ranked.size(); ++i) changes[i] = std::move(ranked[i].second);
}

const Finding* find(const std::vector<Finding>& all, const std::string& id) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Finding& f) { return f.id == id; });
  return it == all.end() ? nullptr : &*it;
}

/// The steps of both runs, and what resampling makes of them.
struct Steps {
  TypicalStep before, now;
  std::vector<TypicalStep> before_draws, now_draws;
};

void compare_parts(const Steps& steps, Comparison& out) {
  for (size_t p = 0; p < model::kPartCount; ++p) {
    const double old_ms = steps.before.part(p, out.by_mean);
    const double new_ms = steps.now.part(p, out.by_mean);
    if (old_ms <= 0 && new_ms <= 0) continue;
    PartChange part{static_cast<Part>(p), old_ms, new_ms, {}, 0, {}};
    part.moved_ms = interval_of(steps.before_draws, steps.now_draws,
                                [&](const TypicalStep& x, const TypicalStep& y) {
                                  return y.part(p, out.by_mean) - x.part(p, out.by_mean);
                                });
    if (out.difference_ms != 0) part.share = (new_ms - old_ms) / out.difference_ms;
    out.parts.push_back(std::move(part));
  }
  std::stable_sort(out.parts.begin(), out.parts.end(),
                   [](const PartChange& l, const PartChange& r) { return l.share > r.share; });
}

/// What a finding costs is as uncertain as the time that it is a part of.
Interval cost_interval(const Finding& f, const TypicalStep& step,
                       const std::vector<TypicalStep>& draws) {
  const Parts parts = parts_of_finding(f.id);
  const double whole = step.in(parts);
  if (!f.cost_ms_per_step || !(whole > 0)) return {};
  return interval_of(
      draws, [&](const TypicalStep& s) { return *f.cost_ms_per_step * s.in(parts) / whole; });
}

void compare_findings(const std::vector<Finding>& before, const std::vector<Finding>& now,
                      const Steps& steps, Comparison& out) {
  for (const Finding& f : now) {
    FindingChange change{f.id, f.title, {}, f.cost_ms_per_step, {}, {}};
    change.new_interval = cost_interval(f, steps.now, steps.now_draws);
    if (const Finding* was = find(before, f.id)) {
      change.old_ms = was->cost_ms_per_step;
      change.old_interval = cost_interval(*was, steps.before, steps.before_draws);
    } else {
      out.appeared.push_back(f);
    }
    out.findings.push_back(std::move(change));
  }
  for (const Finding& f : before) {
    if (find(now, f.id) != nullptr) continue;
    out.vanished.push_back(f);
    out.findings.push_back({f.id,
                            f.title,
                            f.cost_ms_per_step,
                            {},
                            cost_interval(f, steps.before, steps.before_draws),
                            {}});
  }
}

/// The part that explains most of the difference among those that a reason bears on.
PartChange* part_for(Comparison& c, Parts bears_on) {
  for (PartChange& p : c.parts) {
    const bool sure = p.moved_ms.low > 0 || p.moved_ms.high < 0;
    if (p.share >= kWorthAReason && sure && (bears_on & bit(p.part)) != 0) return &p;
  }
  return nullptr;
}

/// Causes overlap: their shares add up to no more than there is to explain.
template <class List>
double fit_shares(List& list, double difference) {
  double sum = 0;
  for (const auto& item : list) sum += item.share_ms.value_or(0);
  if (sum == 0 || std::fabs(sum) <= std::fabs(difference)) return sum;
  for (auto& item : list) {
    if (item.share_ms) *item.share_ms *= difference / sum;
  }
  return difference;
}

void give_reason(Comparison& c, const Change& change) {
  const auto kind = fact_kind(change.what);
  PartChange* part = kind ? part_for(c, kind->bears_on) : nullptr;
  if (part == nullptr) return;
  const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
  part->reasons.push_back(
      {false, change.what,
       fmt::format("{}: {} instead of {}", change.text, shown(change.after), shown(change.before)),
       change.share_ms});
}

/// Puts findings and changes beside the parts that they bear on: what was found and what was
/// measured before what merely differs.
void give_reasons(Comparison& c) {
  const double difference = c.difference_ms;
  for (const FindingChange& f : c.findings) {
    const double old_ms = f.old_ms.value_or(0), new_ms = f.new_ms.value_or(0);
    const double moved = new_ms - old_ms;
    // It moved the way the steps did, and by more than it may move by itself.
    if (moved * difference <= 0 || std::fabs(moved) <= kMoved * std::max(old_ms, new_ms)) continue;
    const Parts parts = parts_of_finding(f.id);
    PartChange* part = part_for(c, parts);
    if (part == nullptr && parts != 0) part = part_for(c, kAllParts);
    if (part == nullptr) continue;
    const double share =
        std::copysign(std::min(std::fabs(moved), std::fabs(difference)), difference);
    part->reasons.push_back({true, f.id, f.title, share});
  }
  for (PartChange& part : c.parts) {
    std::stable_sort(part.reasons.begin(), part.reasons.end(),
                     [](const Reason& l, const Reason& r) {
                       return std::fabs(*l.share_ms) > std::fabs(*r.share_ms);
                     });
    fit_shares(part.reasons, difference);
  }
  // Of what merely differs, a variable that is there to slow jobs down comes first, where it came
  // with slower steps or went with faster ones.
  const auto rank = [&](const Change& change) {
    if (change.share_ms) return 0;
    const int slows = static_cast<int>(slows_by_purpose(change.what, change.after)) -
                      static_cast<int>(slows_by_purpose(change.what, change.before));
    return slows * difference > 0 ? 1 : 2;
  };
  for (const int wanted : {0, 1, 2}) {
    for (const Change& change : c.changes) {
      if (rank(change) == wanted) give_reason(c, change);
    }
  }
}

std::string headline_of(const Comparison& c) {
  if (c.verdict == "no_difference") {
    return "No difference in speed that could be told from noise.";
  }
  const bool slower = c.verdict == "slower";
  const auto words = [](double ms) { return format_duration(nanos(ms * 1e6)); };
  std::string out =
      fmt::format("Steps take {} {}{} ({} instead of {})", words(std::fabs(c.difference_ms)),
                  slower ? "longer" : "less", c.by_mean ? " on average" : "",
                  words(c.by_mean ? c.new_mean_ms : c.new_median_ms),
                  words(c.by_mean ? c.old_mean_ms : c.old_median_ms));
  if (c.parts.empty()) return out + ".";
  const PartChange& part = c.parts.front();
  std::string name(model::name(part.part));
  std::replace(name.begin(), name.end(), '_', ' ');
  out += fmt::format(", {} in {}",
                     part.share > 0.95 ? "all of it" : format_percent(part.share) + " of it", name);
  if (!part.reasons.empty()) {
    const Reason& why = part.reasons.front();
    const double moved = std::fabs(part.new_ms - part.old_ms);
    if (why.share_ms && std::fabs(*why.share_ms) < kMostOfIt * moved) return out + ".";
    out += why.finding && !slower ? "; less of: " : why.share_ms ? ": " : "; what differs: ";
    out += why.text;
  }
  return out + ".";
}

/// Which of the runs it is that cannot be compared.
std::string too_few(const Comparison& c) {
  const auto text = [](std::string_view which, int64_t steps) {
    return steps == 0 ? fmt::format("the {} run has none", which)
                      : fmt::format("the {} run has {}", which, steps);
  };
  std::string out = "Too few steps to compare: ";
  if (c.old_steps < kFewest) out += text("old", c.old_steps);
  if (c.old_steps < kFewest && c.new_steps < kFewest) out += ", ";
  if (c.new_steps < kFewest) out += text("new", c.new_steps);
  return out + fmt::format("; {} are needed.", kFewest);
}

bool is_without_one(const Interval& ratio) { return ratio.low > 1 || ratio.high < 1; }

/// The mean step but for hiccups: the longest step in fifty, at least one, is left out.
double calm_mean(std::vector<double> lengths) {
  std::sort(lengths.begin(), lengths.end());
  lengths.resize(lengths.size() - std::max<size_t>(lengths.size() / 50, 1));
  return mean(lengths);
}

/// Medians withstand a hiccup, but do not see what happens every tenth step: they decide only
/// where the means say the same but for their hiccups.
std::string verdict_of(const Comparison& c, const StepTimes& before, const StepTimes& now) {
  const Interval& ratio = c.by_mean ? c.mean_ratio_interval : c.ratio_interval;
  if (!is_without_one(ratio)) return "no_difference";
  const bool slower = ratio.low > 1;
  if (!c.by_mean && slower != (calm_mean(now.lengths) > calm_mean(before.lengths))) {
    return "no_difference";
  }
  return slower ? "slower" : "faster";
}

/// What is known of each run by itself, however few steps the other has.
void tell_sides(const Steps& steps, Comparison& out) {
  const auto step_median = [](const TypicalStep& s) { return s.median; };
  out.old_median_ms = steps.before.median;
  out.new_median_ms = steps.now.median;
  if (!steps.before_draws.empty()) out.old_interval = interval_of(steps.before_draws, step_median);
  if (!steps.now_draws.empty()) out.new_interval = interval_of(steps.now_draws, step_median);
  out.old_mean_ms = steps.before.mean;
  out.new_mean_ms = steps.now.mean;
}

void compare_steps(const RunView& a, const RunView& b, const StepTimes& x, const StepTimes& y,
                   const Steps& steps, Comparison& out) {
  out.ratio = out.new_median_ms / out.old_median_ms;
  out.ratio_interval = bootstrap_median_ratio(y.lengths, x.lengths, 0.95);
  out.mean_ratio = out.new_mean_ms / out.old_mean_ms;
  out.mean_ratio_interval =
      interval_of(steps.before_draws, steps.now_draws,
                  [](const TypicalStep& m, const TypicalStep& n) { return n.mean / m.mean; });
  out.by_mean = is_without_one(out.mean_ratio_interval);
  out.verdict = verdict_of(out, x, y);
  out.difference_ms = steps.now.length(out.by_mean) - steps.before.length(out.by_mean);
  out.difference = interval_of(steps.before_draws, steps.now_draws,
                               [&](const TypicalStep& m, const TypicalStep& n) {
                                 return n.length(out.by_mean) - m.length(out.by_mean);
                               });
  compare_parts(steps, out);
  compare_findings(diagnose(a.run()).findings, diagnose(b.run()).findings, steps, out);

  out.changes = machine_changes(a, b, out.difference_ms);
  out.unexplained_ms = out.difference_ms - fit_shares(out.changes, out.difference_ms);
}

}  // namespace

Comparison compare(const Run& before, const Run& now) {
  Comparison out;
  const RunView a(before), b(now);
  const StepTimes x = step_times(a), y = step_times(b);
  out.old_steps = static_cast<int64_t>(x.lengths.size());
  out.new_steps = static_cast<int64_t>(y.lengths.size());
  const bool comparable = out.old_steps >= kFewest && out.new_steps >= kFewest;
  const Steps steps{typical_step(x), typical_step(y), resample(x, 1), resample(y, 2)};
  tell_sides(steps, out);
  if (comparable) compare_steps(a, b, x, y, steps, out);
  compare_facts(before, now, out);
  name_and_sort(out.changes);
  if (!comparable) {
    out.headline = too_few(out);
    return out;
  }
  if (out.verdict != "no_difference") give_reasons(out);
  out.headline = headline_of(out);
  return out;
}

}  // namespace flatout::diagnose

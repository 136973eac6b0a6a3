// Stalls that recur every so many steps, of which nothing else tells the cause.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/evaluation_passes.h"
#include "diagnose/findings.h"
#include "diagnose/framework.h"

namespace flatout::diagnose {

using model::Finding;
using model::Series;
using model::SignalId;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

// Of what a step takes on average, the least that is a stall.
constexpr double kLeastOfMean = 0.25;
// Stalls of one kind are at least this part as long as the usual one of them.
constexpr double kAlike = 0.4;
// Steps that stall this often by chance are no period.
constexpr double kByChance = 0.02;
// Bytes written each time from which a stall is a save.
constexpr double kSaved = 64 << 10;
// How sure a finding is from which it is no mere wait; and of the waits, those in long steps.
constexpr double kKnown = 0.8, kWaitsThen = 0.7;
// Of what the stalls cost, what is known of the same line from which they are that.
constexpr double kAtSameLine = 0.3;
// Part of a stall that writes from which it is the making of what is written.
constexpr double kComputes = 0.7;
// Part of what stalls take that goes into gradients from which they train: what is differentiated
// takes about as long as its gradients.
constexpr double kTrains = 0.25;

struct Long {
  const Step* step = nullptr;
  double extra = 0;  // seconds beyond the usual step
};

/// Steps far longer than usual, by index. Steps that something else made a little longer lie
/// between: what counts are those like the one that half of the lost time lies in longer steps
/// than.
std::vector<Long> long_steps(const RunView& view) {
  const StepsView& steps = view.steps();
  std::vector<Long> longs;
  double all = 0;
  // Who waits for a device that he runs ahead of waits for what the steps before gave it to do. JAX
  // lets no more than some steps lie there, and makes the next one wait in its call.
  const bool in_calls = framework(view.run()) == Framework::kJax;
  std::vector<double> lengths;
  for (const Step* s : steps.steady) {
    Nanos own = s->length() - s->part(model::Part::kSync);
    if (in_calls) own -= s->part(model::Part::kForward);
    lengths.push_back(to_s(own));
  }
  const double usual = lengths.empty() ? 0 : median(lengths);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const Step* s = steps.steady[i];
    const double extra = lengths[i] - usual;
    if (extra < 0.5 * usual || extra < kLeastOfMean * steps.mean) continue;
    all += extra;
    longs.push_back({s, extra});
  }
  std::sort(longs.begin(), longs.end(),
            [](const Long& a, const Long& b) { return a.extra > b.extra; });
  double least = 0, longer = 0;
  for (const Long& one : longs) {
    longer += one.extra;
    least = kAlike * one.extra;
    if (longer >= 0.5 * all) break;
  }
  std::erase_if(longs, [&](const Long& one) { return one.extra < least; });
  std::sort(longs.begin(), longs.end(),
            [](const Long& a, const Long& b) { return a.step->index < b.step->index; });
  return longs;
}

/// Whether these steps are longer by design: a generator that trains once in so many steps of its
/// critic has an optimizer of its own.
bool has_more_to_do(const RunView& view, const std::vector<Long>& longs) {
  std::vector<const Slice*> work;
  for (const Slice& s : view.run().slices) {
    const bool trains = s.kind == SliceKind::kOptimizer || s.kind == SliceKind::kBackward;
    if (s.thread == view.trainer() && trains) work.push_back(&s);
  }
  std::sort(work.begin(), work.end(),
            [](const Slice* a, const Slice* b) { return a->end < b->end; });
  double in_long = 0, in_others = 0;
  size_t at = 0, next = 0;
  for (const Step* step : view.steps().steady) {
    while (at < work.size() && work[at]->end <= step->begin) ++at;
    double count = 0;
    for (; at < work.size() && work[at]->end <= step->end; ++at) ++count;
    const bool is_long = next < longs.size() && longs[next].step == step;
    if (is_long) ++next;
    (is_long ? in_long : in_others) += count;
  }
  const double n = static_cast<double>(longs.size());
  const double others = static_cast<double>(view.steps().steady.size()) - n;
  return others > 0 && in_long / n > 1.5 * in_others / others;
}

/// Seconds per step, of all, that long steps spend on gradients beyond what the others do, where
/// they are not a backward pass of the loop's own: an update that the job works out by itself (a
/// natural gradient, a penalty) comes once in so many steps of an optimizer's, by design.
double more_gradients(const RunView& view) {
  const auto n = static_cast<double>(view.steps().count);
  const auto slow = static_cast<double>(view.steps().slow);
  if (slow >= n) return 0;
  const auto spent = [&](bool in_long) {
    return view.per_step(Role::kTrainer, [in_long](const Cell& c) {
      return c.slow_step == in_long && c.part != model::Part::kBackward &&
             (c.traits & kInGradient) != 0 && works(c.act);
    });
  };
  return spent(true) - spent(false) * slow / (n - slow);
}

/// Whether the model is called in evaluation mode in most of the long steps.
bool validates(const RunView& view, const std::vector<Long>& longs) {
  std::vector<const Step*> steps;
  for (const Long& one : longs) steps.push_back(one.step);
  return 2 * evaluation_passes(view, steps).steps > longs.size();
}

/// Of what the long steps take beyond the usual, the time in which the training thread wanted a
/// core and had none: whoever takes the cores has a finding of its own.
double waited_for_cores(const RunView& view, const std::vector<Long>& longs) {
  const Series* delay = view.thread(SignalId::kThreadRunDelay, view.trainer());
  if (delay == nullptr) return 0;
  double waited = 0;
  for (const Long& one : longs) {
    const auto most = delay->most_increase(one.step->begin, one.step->end);
    if (most) waited += std::min(one.extra, *most * 1e-9);
  }
  return waited;
}

/// P(at least k of n) where each happens with probability p.
double at_least(int64_t k, int64_t n, double p) {
  double sum = 0, term = std::pow(1 - p, static_cast<double>(n));
  for (int64_t i = 0; i <= n; ++i) {
    if (i >= k) sum += term;
    term *= static_cast<double>(n - i) / static_cast<double>(i + 1) * p / (1 - p);
  }
  return sum;
}

/// The number of steps from one of these to the next; 0 where they come at odds.
double period_of(const std::vector<Long>& longs) {
  std::vector<double> gaps;
  for (size_t i = 1; i < longs.size(); ++i) {
    gaps.push_back(static_cast<double>(longs[i].step->index - longs[i - 1].step->index));
  }
  const double period = median(gaps);
  if (period < 2) return 0;
  int64_t regular = 0;
  double off = 0;
  for (const double gap : gaps) {
    const double turns = std::max(1.0, std::round(gap / period));
    const double by = std::fabs(gap - turns * period);
    if (by > std::max(0.5, 0.1 * period)) continue;
    ++regular;
    off = std::max(off, by);
  }
  const auto n = static_cast<int64_t>(gaps.size());
  if (static_cast<double>(regular) < 0.75 * static_cast<double>(n)) return 0;
  // The gap that the period was taken from fits whatever it is.
  const double chance = std::min(0.9, (2 * std::floor(off) + 1) / period);
  return at_least(regular - 1, n - 1, chance) < kByChance ? period : 0;
}

/// Bytes that the training process writes for each of `n` stalls.
double written_each(const RunView& view, int64_t n) {
  const double bytes = view.process_increase(
      SignalId::kProcWriteChars, [&](model::ProcessId p) { return p == view.trainer_process(); });
  return bytes / static_cast<double>(n);
}

/// Whether the training thread spends what long steps take longer (`excess` seconds a step, of all)
/// outside of training.
bool does_something_else(const RunView& view, double excess) {
  const double other = view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.role == Role::kTrainer && c.slow_step && c.part == model::Part::kOther;
  });
  return other > 0.7 * excess;
}

/// Of the training thread's time outside of training within long steps, the part on a core, rather
/// than in writes or waits for the disk.
double computed(const RunView& view) {
  const auto other = [](const Cell& c) { return c.slow_step && c.part == model::Part::kOther; };
  const double all = view.per_step(Role::kTrainer, other);
  if (all <= 0) return 0;
  return view.per_step(Role::kTrainer, [&](const Cell& c) {
    return other(c) && (c.act == Act::kPython || c.act == Act::kNative);
  }) / all;
}

/// Seconds per step, of all, that the training thread waits within long ones for threads which take
/// work out of a queue: it runs ahead of them, as of a device.
double waited_for_pool(const RunView& view) {
  if (!view.pool_takes_work()) return 0;
  const auto then = [](const Cell& c) { return c.slow_step && c.part == model::Part::kOther; };
  return std::min(
      view.per_step(Role::kTrainer, [&](const Cell& c) { return then(c) && c.act == Act::kLock; }),
      view.per_step(Role::kPool, [&](const Cell& c) { return then(c) && works(c.act); }));
}

/// Seconds per step, of all, at the line that stalls: what it does in the steps between (a profiler
/// records what it then writes) goes with it.
double at_stalling_line(const RunView& view) {
  const auto other = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part == model::Part::kOther;
  };
  const auto line =
      view.profile().hottest([&](const Cell& c) { return other(c) && c.slow_step; }, view.run());
  if (!line) return 0;
  return view.per_step(Role::kTrainer,
                       [&](const Cell& c) { return other(c) && c.user == line->frame; });
}

/// Whether it is only said that the training thread waits, and it does so in long steps: that these
/// come round says more.
bool is_vague(const RunView& view, const Finding& f) {
  if (f.id != "stall.idle_wait" || f.confidence >= kKnown) return false;
  const auto waits = [](const Cell& c) {
    return c.role == Role::kTrainer &&
           (c.act == Act::kLock || c.act == Act::kPoll || c.act == Act::kNetwork);
  };
  const double in_long =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return waits(c) && c.slow_step; });
  return in_long > kWaitsThen * view.per_step(Role::kTrainer, waits);
}

/// Seconds per step, of all, that the training thread is in the kernel within long ones.
double in_kernel_when_long(const RunView& view) {
  return view.per_step(Role::kTrainer,
                       [](const Cell& c) { return c.slow_step && in_kernel(c.act); });
}

/// Of what the training thread does at the line of a finding, the part in long steps: the rest is
/// no part of their excess.
double share_in_long(const RunView& view, const Finding& f) {
  double all = 0, in_long = 0;
  for (const Cell& c : view.profile().cells()) {
    if (c.role != Role::kTrainer || c.user == 0) continue;
    if (!same_line(f.where, view.stacks().where(c.user))) continue;
    all += c.seconds;
    if (c.slow_step) in_long += c.seconds;
  }
  return all > 0 ? in_long / all : 1;
}

}  // namespace

void detect_periodic(const RunView& view, Findings& findings) {
  if (!view.has_steps() || view.steps().count < 20) return;
  if (findings.has("input.worker_skew")) return;  // the heavy batches come in turns
  if (findings.has("stall.periodic")) return;     // the starts of epochs
  const StepsView& steps = view.steps();
  const std::vector<Long> longs = long_steps(view);
  if (longs.size() < 4 || has_more_to_do(view, longs)) return;
  const auto line =
      view.where([](const Cell& c) { return c.role == Role::kTrainer && c.slow_step; });
  double excess = 0, named = 0, at_line = 0;
  for (const Long& one : longs) excess += one.extra;
  if (!validates(view, longs) &&
      more_gradients(view) * static_cast<double>(steps.count) > kTrains * excess)
    return;
  for (const Finding& f : findings.all()) {
    if (is_vague(view, f)) continue;
    if (same_line(f.where, line))
      at_line += f.cost_ms_per_step.value_or(0) * 1e-3 * static_cast<double>(steps.count);
    // Faults come with every step; those in the usual ones are no part of the excess.
    const double most = f.id == "mem.page_faults" ? in_kernel_when_long(view) : HUGE_VAL;
    const double cost = f.cost_ms_per_step.value_or(0) * 1e-3 * share_in_long(view, f);
    named += std::min(cost, most) * static_cast<double>(steps.count);
  }
  named += waited_for_pool(view) * static_cast<double>(steps.count);
  named = std::max(named, waited_for_cores(view, longs));
  if (named > 0.5 * excess || at_line > kAtSameLine * excess) return;
  const double period = period_of(longs);
  if (period == 0) return;
  const auto n = static_cast<int64_t>(longs.size());
  const double written = written_each(view, n);
  const bool saves = written > kSaved && !findings.has("stall.checkpoint") &&
                     does_something_else(view, excess / static_cast<double>(steps.count));
  const double computes = saves ? computed(view) : 0;
  const double cost = std::max((excess - named) / static_cast<double>(steps.count),
                               saves ? at_stalling_line(view) : 0);
  Finding* f = findings.add(saves ? "stall.checkpoint" : "stall.periodic",
                            computes > kComputes
                                ? "Making and encoding what is written stalls a step every so often"
                            : saves ? "Writing results stalls a step every so often"
                                    : "A stall recurs every few steps",
                            0.7, cost);
  if (f == nullptr) return;
  if (std::ranges::any_of(findings.all(), [&](const Finding& k) { return is_vague(view, k); })) {
    findings.drop("stall.idle_wait");
  }
  f->where = view.where([&](const Cell& c) {
    return c.role == Role::kTrainer && c.slow_step && (!saves || c.part == model::Part::kOther);
  });
  if (saves) {
    evidence(*f, fmt::format("{} are written each time", format_bytes(written)), written, "bytes",
             "probe.processes", n);
  }
  evidence(*f, fmt::format("every {} steps", format_number(period)), period, "steps", "timeline",
           n);
  const double each = excess / static_cast<double>(n);
  evidence(*f, fmt::format("the step then takes {} longer", ms(each)), each * 1e3, "ms", "timeline",
           n);
  if (computes > kComputes) {
    evidence(*f, fmt::format("{} of it is work on a core", format_percent(computes)), computes,
             "ratio", "stacks", n);
  }
  const auto starts = std::count_if(longs.begin(), longs.end(),
                                    [](const Long& one) { return one.step->epoch_start; });
  if (2 * starts > n) {
    evidence(*f, fmt::format("{} of {} are the first of an epoch", starts, n),
             static_cast<double>(starts), "steps", "timeline", n);
    remedy(*f, "epochs",
           "Let the loader go on from epoch to epoch (a sampler without end), so that the first "
           "batch lies ready.");
  }
  if (computes > kComputes) {
    remedy(*f, "less_often",
           "Do it less often, or in another process; threads help where it lets go of the "
           "interpreter's lock.");
    remedy(*f, "compression", "Compress less, and make it no bigger than it is looked at.");
    return;
  }
  if (saves) {
    remedy(*f, "async_save", "Write in a thread or less often, and in binary.");
    return;
  }
  remedy(*f, "look", "Look at what the stacks show in those steps.");
}

}  // namespace flatout::diagnose

// Why the step waits for input. One main cause is chosen: what takes most of the time that bounds
// the making of batches; others are told beside it only where they are large in their own right.
#include "diagnose/input.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/framework.h"
#include "diagnose/input_causes.h"
#include "diagnose/input_files.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

// A second cause must explain this much of a batch's time.
constexpr double kSecondCause = 0.25;
constexpr double kMadeInLoader = 0.5;     // of the input wait
constexpr double kMadeInGenerator = 0.5;  // of the input wait
constexpr double kMadeByHand = 0.5;       // of the input wait, in Python before the forward pass
constexpr double kMuchByHand = 0.1;       // of the step: less may be bookkeeping
// Of the step: a loop that does no more by itself; and of that, for which the others work
// meanwhile.
constexpr double kLittleElse = 0.25, kAhead = 0.5;
// Of the input wait, what the first steps of epochs wait longer, from which epochs are the cause;
// and so many of them at least.
constexpr double kAtEpochs = 0.5;
constexpr int64_t kFewEpochs = 4;
// Waits that are this much of the step are named whatever is known of them, though not surely.
constexpr double kMuchWait = 0.25, kUnsure = 0.5;
constexpr double kMostlyTaken = 0.5;  // of the wait, batches that have come are taken over

void add_common_evidence(const RunView& view, Finding& f) {
  const double step = view.steps().mean, wait = view.steps().part(Part::kInputWait);
  evidence(f,
           fmt::format("the {} waits for input {} of its time",
                       view.has_steps() ? "step" : "training thread", format_percent(wait / step)),
           wait / step, "ratio", "timeline", view.steps().count);
  const LoaderView& loader = view.loader();
  if (loader.measured) {
    evidence(f,
             fmt::format("making a batch takes {} {}", ms(loader.fetch),
                         loader.kind == LoaderKind::kSerial ? "in the training thread"
                                                            : "of a worker's time"),
             loader.fetch * 1e3, "ms", "agent.loader", loader.batches);
  }
  if (loader.kind != LoaderKind::kSerial && loader.measured) {
    evidence(f, fmt::format("{} of them side by side", loader.workers), loader.workers, "workers",
             "agent.loader", loader.batches);
  } else if (loader.kind != LoaderKind::kSerial) {
    const bool threads = loader.kind == LoaderKind::kThreads;
    const std::string_view who = loader.workers == 1 ? (threads ? "thread makes" : "process makes")
                                 : threads           ? "threads make"
                                                     : "processes make";
    evidence(f, fmt::format("{} {} batches beside the training thread", loader.workers, who),
             loader.workers, "workers", "stacks", loader.batches);
  }
  if (view.cpu().idle_known) {
    evidence(f,
             fmt::format("{} of {} cores were idle", format_number(view.cpu().idle),
                         format_number(view.cpu().cores)),
             view.cpu().idle, "cores", "probe.host", view.steps().count);
    evidence(f, fmt::format("the host has {} cores", format_number(view.cpu().cores)),
             view.cpu().cores, "cores", "probe.host");
  }
}

}  // namespace

bool holds_gil(const Cell& c) {
  return !c.aside && c.role != Role::kTrainer && c.role != Role::kPool && c.act == Act::kPython;
}

double gil_for_passing(const RunView& view) {
  const double all = view.profile().seconds(holds_gil);
  const double passing = view.profile().seconds(
      [](const Cell& c) { return holds_gil(c) && (c.traits & kInQueue) != 0; });
  if (all <= 0) return 0;
  return passing / all * view.per_step(Role::kTrainer, [](const Cell& c) {
    return c.act == Act::kGil && c.part != Part::kInputWait;
  });
}

bool makes_batches(const RunView& view, const Cell& c) {
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kSerial) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait;
  }
  // A worker's queue may pickle in a thread of its own.
  if (c.role == Role::kHelper && c.stage == Stage::kHandover) return true;
  if (c.role != Role::kProducer) return false;
  if (loader.measured) return c.stage != Stage::kNone;
  if ((c.traits & kAtMutex) != 0) return true;
  return c.act != Act::kIdle && c.act != Act::kPoll && c.act != Act::kLock &&
         c.act != Act::kUnknown;
}

bool makes_samples(const RunView& view, const Cell& c) {
  // Where nobody measures the stages the stack tells them.
  const bool collates =
      view.loader().measured ? c.stage == Stage::kCollate : (c.traits & kInCollate) != 0;
  return makes_batches(view, c) && !collates && c.stage != Stage::kHandover &&
         (c.traits & kInQueue) == 0;
}

namespace {

/// What the first steps of epochs wait for input beyond the others, where the training thread makes
/// the batches: making the loader and its order is no work on a batch.
struct EpochStarts {
  int64_t count = 0;
  double first = 0, others = 0;  // the usual waits, in seconds
  double cost = 0;               // per step, of all; 0 where it is not most of the wait
};

EpochStarts epoch_starts(const RunView& view) {
  EpochStarts out;
  if (view.loader().kind != LoaderKind::kSerial || !view.loader().measured) return out;
  std::vector<double> first, others;
  for (const model::Step* s : view.steps().steady) {
    (s->epoch_start ? first : others).push_back(to_s(s->part(Part::kInputWait)));
  }
  out.count = static_cast<int64_t>(first.size());
  if (out.count < kFewEpochs || others.empty()) return out;
  out.first = median(first);
  out.others = median(others);
  double beyond = 0;
  for (const double wait : first) beyond += std::max(0.0, wait - out.others);
  const double cost = beyond / static_cast<double>(view.steps().count);
  const StepsView& steps = view.steps();
  if (cost > kWorthSaying * steps.mean && cost > kAtEpochs * steps.part(Part::kInputWait)) {
    out.cost = cost;
  }
  return out;
}

/// Epochs so short that their starts are most of what the steps wait for.
void detect_epochs(const RunView& view, Findings& findings) {
  const EpochStarts starts = epoch_starts(view);
  if (starts.cost == 0) return;
  Finding* f = findings.add(
      "stall.periodic", "Each epoch's start makes the loader and its order anew", 0.8, starts.cost);
  if (f == nullptr) return;
  f->where = view.where([](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && c.slow_step;
  });
  const double every = static_cast<double>(view.steps().count) / static_cast<double>(starts.count);
  evidence(*f, fmt::format("every {} steps", format_number(every)), every, "steps", "timeline",
           starts.count);
  evidence(*f,
           fmt::format("an epoch's first step waits {} for its batch, the others {}",
                       ms(starts.first), ms(starts.others)),
           starts.first * 1e3, "ms", "timeline", starts.count);
  remedy(*f, "epochs",
         "Make the loader once, and let it go on from epoch to epoch: a sampler without end, or "
         "longer epochs.");
}

}  // namespace

BatchTimes batch_times(const RunView& view) {
  BatchTimes out;
  const LoaderView& loader = view.loader();
  double samples = 0, all = 0, collate = 0;
  for (const Cell& c : view.profile().cells()) {
    if (!makes_batches(view, c)) continue;
    out.readings += c.readings;
    all += c.seconds;
    if (!makes_samples(view, c)) {
      collate += c.seconds;
      continue;
    }
    samples += c.seconds;
    out.act[static_cast<size_t>(c.act)] += c.seconds;
    if ((c.traits & kAtMutex) != 0) out.at_mutex += c.seconds;
  }
  out.total = loader.fetch;
  if (loader.kind == LoaderKind::kSerial && loader.measured && loader.batches > 0) {
    // What the loop itself does to a batch before the forward pass is part of making it.
    const double waited = (view.steps().part(Part::kInputWait) - epoch_starts(view).cost) *
                          static_cast<double>(view.steps().count) /
                          static_cast<double>(loader.batches);
    out.in_loop = std::max(0.0, waited - loader.fetch);
    out.total += out.in_loop;
  }
  if (all <= 0) return out;
  if (loader.measured) {
    out.collate = loader.collate;
    out.handover = loader.handover;
  } else {
    out.collate = loader.fetch * collate / all;
  }
  const double for_samples = std::max(0.0, out.total - out.collate - out.handover);
  const double scale = samples > 0 ? for_samples / samples : 0;
  for (double& t : out.act) t *= scale;
  out.at_mutex *= scale;
  return out;
}

namespace {

/// Whether the training thread makes its batches in a data loader's own code.
bool in_loader(const RunView& view) {
  const double inside = view.trainer_in(
      Part::kInputWait, [](const Cell& c) { return (c.traits & (kInLoader | kInFetch)) != 0; });
  return inside > kMadeInLoader * view.steps().part(Part::kInputWait);
}

/// Whether a program without Python has text parsed for its batches.
bool parses_text(const RunView& view) {
  const auto parses = [&](const Cell& c) {
    return makes_batches(view, c) && (c.traits & kInParser) != 0;
  };
  return !view.is_python() && view.readings(parses) >= kFewReadings;
}

/// Whether each step is one call of what JAX compiled: what runs before it, operation by operation,
/// is no part of a model.
bool steps_are_compiled(const RunView& view) {
  return framework(view.run()) == Framework::kJax &&
         view.run().steps.source == model::StepSource::kHooks &&
         view.steps().part(Part::kForward) > 0 && view.steps().part(Part::kBackward) == 0;
}

/// Work before the forward pass in a loop without a loader is input only if it brings data in, is
/// done in a generator that the loop runs over, or is Python's rather than the framework's.
bool is_input(const RunView& view, const BatchTimes& times) {
  if (view.loader().measured || view.loader().kind != LoaderKind::kSerial) return true;
  if (in_loader(view) || parses_text(view) || steps_are_compiled(view)) return true;
  const double waits = times[Act::kRead] + times[Act::kMetadata] + times[Act::kNetwork] +
                       times[Act::kSeek] + times[Act::kChild] + times[Act::kPoll];
  if (waits > 0.1 * times.total) return true;
  if (fed_by_hand(view)) return true;
  const ReadWork read = read_work(view);
  if ((read.calls >= 1 && read.bytes > 1024) || view.in_generators() > kMadeInGenerator)
    return true;
  const double by_hand = view.input_before_forward();
  return by_hand > kMadeByHand &&
         by_hand * view.steps().part(Part::kInputWait) > kMuchByHand * view.steps().mean;
}

/// Whether a loop of unknown kind mostly waits for a peer's answers: that need not be data.
bool waits_for_answers(const RunView& view, const BatchTimes& times) {
  return view.run().steps.source == model::StepSource::kRepetition &&
         view.loader().kind == LoaderKind::kSerial && !view.loader().measured &&
         times[Act::kNetwork] + times[Act::kPoll] > 0.5 * times.total;
}

/// Whether those that seem to make batches do the work of the step itself, which is split among
/// them: a loop of unknown kind hands it out, does little else, and they have nothing to do before
/// it waits for them. Who reads data makes batches.
bool splits_its_work(const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  if (view.run().steps.source != model::StepSource::kRepetition || loader.measured) return false;
  if (loader.kind != LoaderKind::kThreads && loader.kind != LoaderKind::kProcesses) return false;
  const double own = view.steps().mean - view.steps().part(Part::kInputWait);
  if (own > kLittleElse * view.steps().mean || times[Act::kRead] > 0.1 * times.total) return false;
  const double ahead = view.per_step(
      Role::kProducer, [](const Cell& c) { return c.part != Part::kInputWait && on_cpu(c.act); });
  return ahead < kAhead * own;
}

/// False: not worth saying.
bool add_cause(const RunView& view, const BatchTimes& times, const InputCause& cause, double sure,
               double saved, Findings& findings) {
  Finding* f = findings.add(cause.id, cause.title, sure, saved);
  if (f == nullptr) return false;
  f->where = view.where(cause.cells);
  // Where a library does it all, the line that waits for it is the user's.
  if (!f->where) {
    f->where = view.where(
        [](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kInputWait; });
  }
  add_common_evidence(view, *f);
  if (times.mostly_in_loop()) {
    evidence(*f, fmt::format("the loop spends {} on it before the forward pass", ms(times.in_loop)),
             times.in_loop * 1e3, "ms", "timeline", view.steps().count);
  }
  if (cause.in_turns()) {
    const auto waits = [&](const Cell& c) {
      return makes_batches(view, c) && c.part == Part::kInputWait;
    };
    const auto makes = [&](const Cell& c) { return makes_batches(view, c); };
    const double share = view.profile().seconds(waits) / view.profile().seconds(makes);
    evidence(*f,
             fmt::format("{} of the work on batches is done while the step waits for them",
                         format_percent(share)),
             share, "ratio", "stacks", view.readings(makes));
    const double stood =
        view.per_step(Role::kProducer, cause.cells) / std::max(view.loader().workers, 1);
    evidence(*f, fmt::format("while it computes, who makes them waits for {} a step", ms(stood)),
             stood * 1e3, "ms", "stacks", view.readings(cause.cells));
  } else if (cause.relief.uneven > 0) {
    const double taken = cause.relief.handling + cause.relief.uneven;
    evidence(*f, fmt::format("taking a batch from its worker holds the step up {}", ms(taken)),
             taken * 1e3, "ms", "stacks", view.readings(cause.cells));
  } else if (const double taken = taken_over(view) / batches_per_step(view);
             cause.id == "input.collate" && taken > cause.weight) {
    evidence(*f, fmt::format("taking over a batch that has come takes {}", ms(taken)), taken * 1e3,
             "ms", "stacks", view.readings(cause.cells));
  } else {
    const bool lock = cause.id == "input.lock";
    const double share = std::min(1.0, (lock ? times.at_mutex : cause.weight) / times.total);
    evidence(*f,
             fmt::format("{} {} of the time to make a batch",
                         lock ? "waiting for the lock is" : "this takes", format_percent(share)),
             share, "ratio", "stacks", view.readings(cause.cells));
  }
  const bool stored = cause.id.starts_with("input.disk") || cause.id == "input.cold_cache" ||
                      cause.id == "input.random_seek";
  if (stored) storage_evidence(view, *f);
  add_input_remedies(*f, view, times, cause.in_turns());
  if (stored) storage_remedies(view, *f);
  return true;
}

}  // namespace

void detect_input(const RunView& view, Findings& findings) {
  if (!view.has_steps() && !view.knows_waits()) return;
  if (view.has_steps()) detect_boundary(view, findings);
  const double step = view.steps().mean, wait = view.steps().part(Part::kInputWait);
  if (wait < kWorthSaying * step || detect_graph_input(view, findings)) return;
  detect_restart(view, findings);
  detect_epochs(view, findings);
  const double at_epochs = findings.cost("stall.periodic");
  const double left = wait - findings.cost("input.worker_restart") - at_epochs;
  // What else there is beside the starts of epochs must be worth saying by itself.
  if (left < (at_epochs > 0 ? 2 : 1) * kWorthSaying * step || left < 0.3 * wait) return;
  const WhatIf whatif(view);
  detect_skew(view, whatif, findings);
  if (findings.has("input.worker_skew")) return;
  detect_order(view, whatif, findings);
  const LoaderView& loader = view.loader();
  if (loader.kind == LoaderKind::kNone) return;
  const BatchTimes times = batch_times(view);
  if (!is_input(view, times) || waits_for_answers(view, times)) return;
  if (times.readings < kFewReadings || times.total <= 0) return;
  std::vector<InputCause> all = input_causes(view, times, whatif);
  std::sort(all.begin(), all.end(),
            [](const InputCause& a, const InputCause& b) { return a.weight > b.weight; });
  bool first = true;
  for (const InputCause& cause : all) {
    if (!first && cause.weight < kSecondCause * times.total) break;
    if (findings.has(cause.id)) continue;
    if (cause.id == "input.decode_cpu" && splits_its_work(view, times)) {
      first = false;
      continue;
    }
    const double saved = whatif.saved_by(cause.relief);
    // Any loader passes batches on; only much of it is a cause. And workers that idle bound
    // nothing, unless computing waits for the cores that they take.
    const bool handling = cause.relief.handling > 2 * kWorthSaying * step;
    const bool competes = cause.relief.fetch_cpu > 0 && whatif.competing() > kWorthSaying * step;
    if (loader.measured && loader.kind != LoaderKind::kSerial && loader.busy < kProducersBusy &&
        !handling && !competes) {
      continue;
    }
    if (cause.id == "input.collate" && saved < 2 * kWorthSaying * step) continue;
    const double sure = std::min(0.97, 0.5 + 0.5 * cause.weight / times.total);
    if (add_cause(view, times, cause, sure, saved, findings)) first = false;
  }
}

void detect_late_batches(const RunView& view, Findings& findings) {
  if (!view.has_steps() && !view.knows_waits()) return;
  // Nobody waits for a batch because of faults.
  if (std::ranges::any_of(findings.all(),
                          [](const Finding& f) { return f.id != "mem.page_faults"; })) {
    return;
  }
  const double step = view.steps().mean;
  if (view.steps().part(Part::kInputWait) < kMuchWait * step) return;
  if (view.loader().kind == LoaderKind::kNone || view.loader().graph) return;
  const BatchTimes times = batch_times(view);
  if (!is_input(view, times) || times.readings < kFewReadings || times.total <= 0) return;
  if (splits_its_work(view, times) || waits_for_answers(view, times)) return;
  const WhatIf whatif(view);
  const std::vector<InputCause> all = input_causes(view, times, whatif);
  auto most = std::ranges::max_element(all, {}, &InputCause::weight);
  if (taken_over(view) > kMostlyTaken * view.steps().part(Part::kInputWait))
    most = std::ranges::find(all, "input.collate", &InputCause::id);
  if (most == all.end()) return;
  add_cause(view, times, *most, kUnsure, step - whatif.compute(), findings);
}

}  // namespace flatout::diagnose

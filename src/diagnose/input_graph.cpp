// Input that a framework's own pipeline makes in native threads: tf.data. Its own model of the
// stages says which of them the work lies in; who waits for it, and how long, the agent says.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/input.h"
#include "diagnose/input_causes.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Step;

namespace {

// Of what less work saves, what more threads must save to be what lacks.
constexpr double kMostOfIt = 0.7;
// Of the pipeline's work, what its threads wait for storage from which that is the cause.
constexpr double kStored = 0.3;
// Times the usual wait, and of the usual step, from which a wait is for a buffer that is filled;
// and of all that steps wait, from which that is what they wait for; and so many of them.
constexpr double kLongWait = 5, kLongStep = 0.5, kMostWait = 0.5;
constexpr int64_t kFewRefills = 3;
// Steps from one to the next at least, and the part of them that are as many as usual.
constexpr double kLeastRound = 4, kRegular = 0.7;
// Of what the pipeline works on a batch, what a step that makes it itself can wait for it.
constexpr double kNoLonger = 1.5;

bool waits(const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kInputWait; }

/// Whether steps with these numbers come round, rather than by chance.
bool come_round(const std::vector<int64_t>& at) {
  std::vector<double> gaps;
  for (size_t i = 1; i < at.size(); ++i) gaps.push_back(static_cast<double>(at[i] - at[i - 1]));
  const double usual = median(gaps);
  const auto regular = std::ranges::count_if(
      gaps, [&](double gap) { return std::abs(gap - usual) <= std::max(1.0, 0.1 * usual); });
  return usual >= kLeastRound &&
         static_cast<double>(regular) >= kRegular * static_cast<double>(gaps.size());
}

/// Waits for a buffer of samples to be filled.
struct Refills {
  int64_t count = 0, at_epochs = 0;
  double cost = 0;  // per step, of all
};

Refills refills(const RunView& view) {
  Refills out;
  std::vector<double> all;
  double waited = 0;
  for (const Step* s : view.steps().steady) {
    all.push_back(to_s(s->part(Part::kInputWait)));
    waited += all.back();
  }
  const double usual = median(all);
  const double longest = std::max(kLongWait * usual, kLongStep * view.steps().median);
  std::vector<int64_t> at;
  for (const Step* s : view.steps().steady) {
    const double wait = to_s(s->part(Part::kInputWait));
    if (wait < longest) continue;
    ++out.count;
    at.push_back(s->index);
    if (s->epoch_start) ++out.at_epochs;
    out.cost += wait - usual;
  }
  if (out.count < kFewRefills || out.cost < kMostWait * waited) return {};
  if (2 * out.at_epochs < out.count && !come_round(at)) return {};
  out.cost /= static_cast<double>(view.steps().count);
  return out;
}

void common_evidence(const RunView& view, Finding& f) {
  const double wait = view.steps().part(Part::kInputWait) / view.steps().mean;
  evidence(f, fmt::format("the step waits for input {} of its time", format_percent(wait)), wait,
           "ratio", "timeline", view.steps().count);
  if (view.cpu().idle_known) {
    evidence(f,
             fmt::format("{} of {} cores were idle", format_number(view.cpu().idle),
                         format_number(view.cpu().cores)),
             view.cpu().idle, "cores", "probe.host", view.steps().count);
  }
}

/// The cores work meanwhile: nothing goes cold, as it does where nobody works.
void finish(const RunView& view, const GraphStage& stage, Finding& f) {
  const double step = view.steps().mean;
  f.gain = step / (step - *f.cost_ms_per_step * 1e-3);
  f.where = stage.where ? stage.where : view.where(waits);
}

/// False: it is not what steps wait for.
bool detect_refills(const RunView& view, Findings& findings) {
  const Refills found = refills(view);
  const GraphStage* const shuffle = view.pipeline().find("Shuffle");
  if (found.count == 0 || (shuffle == nullptr && 2 * found.at_epochs < found.count)) return false;
  Finding* f =
      findings.add("stall.periodic",
                   shuffle != nullptr ? "The step waits while the shuffle buffer is filled anew"
                                      : "Each epoch's start makes the input pipeline anew",
                   0.85, found.cost);
  if (f == nullptr) return false;
  finish(view, shuffle != nullptr ? *shuffle : view.pipeline().heaviest(), *f);
  const double every = static_cast<double>(view.steps().count) / static_cast<double>(found.count);
  evidence(*f, fmt::format("every {} steps", format_number(every)), every, "steps", "timeline",
           found.count);
  const double each = found.cost * every;
  evidence(*f, fmt::format("such a step waits {} longer", ms(each)), each * 1e3, "ms", "timeline",
           found.count);
  const GraphStage& most = view.pipeline().heaviest();
  evidence(*f,
           fmt::format("most of the work is that of {}: {} a batch", escape_terminal(most.name),
                       ms(most.seconds)),
           most.seconds * 1e3, "ms", "agent.pipelines", view.steps().count);
  common_evidence(view, *f);
  remedy(
      *f, "small_buffer",
      "Shuffle what is cheap and small (file names, indices) before the work on samples, or use a "
      "smaller buffer; let the pipeline go on over epochs: repeat() before or right after it.");
  remedy(*f, "prefetch", "Work ahead: num_parallel_calls and prefetch() behind the buffer.");
  return true;
}

/// What the pipeline's threads wait for storage, per step.
double stored(const RunView& view) {
  return view.per_step(Role::kPool, [](const Cell& c) { return c.act == Act::kRead; });
}

}  // namespace

bool detect_graph_input(const RunView& view, Findings& findings) {
  const LoaderView& loader = view.loader();
  if (!loader.graph || !view.has_steps()) return false;
  const StepsView& steps = view.steps();
  const double wait = steps.part(Part::kInputWait);
  // In a graph it is a difference of two times, each of which varies.
  if (wait < 2 * kWorthSaying * steps.mean) return true;
  const bool refilled = detect_refills(view, findings);
  const GraphPipeline& pipeline = view.pipeline();
  const GraphStage& most = pipeline.heaviest();
  const bool serial = loader.kind == LoaderKind::kSerial;
  double left = wait - (refilled ? findings.cost("stall.periodic") : 0);
  // A pipeline with time to spare is not what a step waits for: it computes longer, now and then.
  if (!serial && loader.busy < kProducersBusy) return true;
  if (serial) left = std::min(left, kNoLonger * loader.fetch);
  if (left < (refilled ? 2 : 1) * kWorthSaying * steps.mean) return true;
  const WhatIf whatif(view);
  const double share = most.seconds / pipeline.seconds;
  Relief less{.fetch = share * (serial ? left : loader.fetch)};
  if (!serial) less.fetch_cpu = less.fetch;
  const double by_less = std::min(whatif.saved_by(less), serial ? left : steps.mean);
  const int enough = std::max(2, static_cast<int>(view.cpu().usable));
  const Relief more{.workers = enough};
  // Who reads has no threads to be given.
  const bool reads = &most == &pipeline.stages.back();
  const bool few =
      has_idle_cores(view) && !reads && most.threads < enough && view.cpu().throttled < 0.05;
  const double by_more = few ? std::min(whatif.saved_by(more), by_less) : 0;
  const bool lacks_threads = by_more > kMostOfIt * by_less;
  const bool from_storage = stored(view) > kStored * loader.fetch;
  Finding* f =
      from_storage ? findings.add(storage_cause(view), "Reads that wait for storage bound tf.data",
                                  0.8, by_less)
      : lacks_threads
          ? findings.add("input.too_few_workers",
                         "tf.data makes batches in too few threads while cores idle", 0.85, by_more)
          : findings.add("input.decode_cpu",
                         fmt::format("tf.data's {} bounds the input", escape_terminal(most.name)),
                         0.9, by_less);
  if (f == nullptr) return true;
  finish(view, most, *f);
  common_evidence(view, *f);
  evidence(*f,
           fmt::format("{} takes {} of a thread's time for a batch", escape_terminal(most.name),
                       ms(most.seconds)),
           most.seconds * 1e3, "ms", "agent.pipelines", steps.count);
  evidence(*f, fmt::format("that is {} of the whole pipeline's", format_percent(share)), share,
           "ratio", "agent.pipelines", steps.count);
  evidence(*f, fmt::format("{} of them side by side", most.threads), most.threads, "threads",
           "agent.pipelines", steps.count);
  if (from_storage) {
    storage_evidence(view, *f);
    storage_remedies(view, *f);
    return true;
  }
  if (few || !pipeline.ahead()) {
    remedy(*f, "parallel_calls",
           "Work ahead and side by side: num_parallel_calls=tf.data.AUTOTUNE, and "
           "prefetch(tf.data.AUTOTUNE) at the end.");
  }
  remedy(*f, "cache",
         "Do it once: cache() right after it where it is the same for each epoch, or store what it "
         "makes.");
  remedy(*f, "vectorise", "Do it for whole batches: batch() before map().");
  return true;
}

}  // namespace flatout::diagnose

#include "timeline/steps.h"

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "timeline/beside_training.h"
#include "timeline/device_use.h"
#include "timeline/graph_input.h"
#include "timeline/repetition.h"
#include "timeline/step_ends.h"
#include "timeline/step_evidence.h"
#include "timeline/step_layout.h"
#include "timeline/step_summary.h"
#include "timeline/successors.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// Samples that a step eats: the batch size times the batches, from what the loader told.
double samples_per_step(const Run& run, std::span<const Slice> slices,
                        std::span<const Step> steps) {
  double batch = 0;
  if (const auto told = parse_number<double>(run.fact("loader.batch_size")); told && *told > 0) {
    batch = *told;
  } else {
    std::vector<double> sizes;
    for (const Slice& slice : run.slices) {
      if (slice.kind == SliceKind::kFetch && slice.value > 0) {
        sizes.push_back(static_cast<double>(slice.value));
      }
    }
    if (!sizes.empty()) batch = median(sizes);
  }
  if (batch <= 0) return 0;
  std::vector<double> waits;  // of each judged step: several batches where gradients accumulate
  size_t s = 0;
  for (const Step& step : steps) {
    double count = 0;
    while (s < slices.size() && slices[s].end <= step.begin) ++s;
    for (; s < slices.size() && slices[s].end <= step.end; ++s) {
      count += slices[s].kind == SliceKind::kInputWait;
    }
    if (step.judged()) waits.push_back(count);
  }
  return batch * (waits.empty() ? 1 : std::max(1.0, median(waits)));
}

constexpr const char* kStepsMissing = "steps";

struct Found {
  StepSource source = StepSource::kNone;
  ThreadId thread = 0;
  std::vector<Slice> slices;
  Layout layout;
};

Found find(const Run& run) {
  Found found;
  if (const auto training = find_training_thread(run)) {
    found.thread = training->thread;
    found.source = training->anchor == SliceKind::kStep ? StepSource::kMarkers : StepSource::kHooks;
    for (const Slice& slice : run.slices) {
      if (slice.thread == found.thread) found.slices.push_back(slice);
    }
    const std::vector<StepEnd> ends = find_step_ends(found.slices, training->anchor);
    found.layout = lay_out_steps(run, found.thread, found.slices, ends);
  }
  if (found.layout.steps.empty()) {
    found.source = StepSource::kNone;
    if (const auto repeated = find_repetition(run)) {
      found.source = StepSource::kRepetition;
      found.thread = repeated->thread;
      found.slices.clear();
      found.layout = lay_out_steps(run, found.thread, {}, repeated->ends);
    }
  }
  return found;
}

// A job that trains is well into its steps by then.
constexpr double kLongEnough = 15.0;
constexpr size_t kManyReadings = 100;

/// Says why no cost is told per step.
void tell_no_steps(Run& run) {
  if (run.readings.size() < kManyReadings || to_s(run.end - run.begin) < kLongEnough) return;
  run.missing.push_back({kStepsMissing,
                         "no hook or marker told any, and no loop was seen to come round at least "
                         "three readings apart",
                         "mark them (flatout/marker.h), or read stacks more often: --rate 200"});
}

/// Without Python it is known without steps, too, when the thread read files, and when it waited
/// for others that worked ahead of it.
void tell_waits(Run& run) {
  const std::optional<ThreadId> thread = find_main_thread(run);
  if (!thread || run.processes[run.threads[*thread].process].python) return;
  run.steps.thread = *thread;
  run.steps.working_ahead = beside_training(run, *thread).working_ahead();
  std::vector<OpenTime> all{{.begin = run.begin, .end = run.end}};
  const OpenTimeContext context{
      .thread = *thread, .phases = false, .team = run.steps.working_ahead.empty(), .native = true};
  run.steps.moments = judge_open_times(run, {}, context, all);
}

}  // namespace

void find_steps(Run& run) {
  join_successors(run);
  if (const auto training = find_training_thread(run)) reveal_graph_input(run, training->thread);
  Found found = find(run);
  run.steps = {};
  std::erase_if(run.missing, [](const Missing& m) { return m.signal == kStepsMissing; });
  if (found.layout.steps.empty()) {
    tell_no_steps(run);
    tell_waits(run);
    find_device_use(run, {});
    return;
  }
  StepSet& set = run.steps;
  set.source = found.source;
  set.thread = found.thread;
  set.steps = std::move(found.layout.steps);
  set.passes = std::move(found.layout.passes);
  set.working_ahead = beside_training(run, set.thread).working_ahead();
  set.moments = std::move(found.layout.moments);
  mark_warmup(set.steps);
  set.summary = summarise(set.steps, samples_per_step(run, found.slices, set.steps));
  set.drift = find_drift(set.steps);
  if (!set.drift) set.changes = find_speed_changes(set.steps);
  find_device_use(run, found.layout.pieces);
}

std::vector<PartPiece> find_parts(const Run& run) { return find(run).layout.pieces; }

}  // namespace flatout::timeline

// The training steps of a trace: ranges that say so, or else what lies between two ends of the
// optimizer's steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/trace.h"
#include "model/trace_summary.h"

namespace flatout::timeline {

struct TraceStep {
  int64_t begin = 0, end = 0;
  model::TrackId track = 0;  // of the thread that does it
  std::string name;
  int64_t wall() const { return end - begin; }
};

struct TraceSteps {
  model::TraceStepSource source = model::TraceStepSource::kNoSteps;
  std::vector<TraceStep> steps;  // in order of their begin
};

/// "step 12", "Iteration#3", "train_step": as people name the range of a step.
bool names_step(std::string_view range);
inline constexpr std::string_view kOptimizerStep = "Optimizer.step#";

/// Slices of the host that may tell of steps, as a pass over the trace finds them.
struct StepSlices {
  std::vector<model::EventId> profiler;   // ProfilerStep#3, and what stands for it elsewhere
  std::vector<model::EventId> framework;  // TensorFlow's functions that do a step
  std::vector<model::EventId> ranges;     // names_step()
  std::vector<model::EventId> optimizer;  // kOptimizerStep
};

/// The first of these that there are any of. Ranges of the program count where there are two of a
/// name, and only the outermost; the optimizer's where it has stepped three times in a thread: what
/// comes before the first end may be start-up, and is no step. Where several optimizers take turns
/// a step is a round of all.
TraceSteps find_trace_steps(const model::Trace& trace, const StepSlices& slices);

}  // namespace flatout::timeline

// Step: one training iteration and its breakdown.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "model/slice.h"

namespace flatout::model {

/// The parts of a step. Every nanosecond of a step belongs to exactly one.
enum class Part : uint8_t {
  kInputWait,
  kH2d,
  kForward,
  kBackward,
  kOptimizer,
  kCommunication,
  kSync,
  kCheckpoint,
  kOther,
  kCompute,  // in place of forward and backward where a trace has no phases
  kCount
};
inline constexpr size_t kPartCount = static_cast<size_t>(Part::kCount);
std::string_view name(Part part);  // "input_wait"
/// The part that time in a slice of this kind belongs to; kCount for kinds that do not say (a step,
/// a phase, a GC pause, which stays with what it interrupts).
Part part_of(SliceKind kind);

struct Step {
  int64_t index = 0;  // counts from 0, as the job counted (gaps where recording was thinned)
  TimePoint begin, end;
  std::array<Nanos, kPartCount> parts{};  // adds up to end - begin
  bool warmup = false;
  bool validation = false;   // a validation phase lies before it, inside its interval
  bool after_gap = false;    // the first after a gap in the recording, or the job was stopped or
                             // profiled in it: not to be judged
  bool epoch_start = false;  // the loader's iterator was made anew within it

  Nanos length() const { return end - begin; }
  /// Whether it says how fast the job is.
  bool judged() const { return !warmup && !validation && !after_gap; }
  Nanos& part(Part p) { return parts[static_cast<size_t>(p)]; }
  Nanos part(Part p) const { return parts[static_cast<size_t>(p)]; }
};

/// What all steps say together; warm-up, validation and steps after a gap are left out.
struct StepSummary {
  int64_t count = 0;   // all steps seen
  int64_t warmup = 0;  // of these, warm-up
  Nanos median{}, mean{}, p95{};
  double samples_per_s = 0;                    // 0 where the batch size is not known
  std::array<double, kPartCount> breakdown{};  // shares of the step, add up to 1
};

/// A change of speed within the run: from step `index` on, steps take `after` instead of `before`.
struct SpeedChange {
  int64_t index = 0;
  TimePoint at;
  Nanos before{}, after{};
};

/// Steps that get slower (or faster) little by little, rather than at once.
struct SpeedDrift {
  Nanos first{}, last{};  // the trend's ends
};

enum class StepSource : uint8_t { kNone, kMarkers, kHooks, kRepetition, kTrace };

/// What the training thread did in the time up to `at`, by a reading of its stack.
struct Moment {
  TimePoint at;
  Part part = Part::kCount;
};

struct StepSet {
  StepSource source = StepSource::kNone;
  uint32_t thread = 0;  // Run::threads: the training thread
  std::vector<Step> steps;
  // What validations and a policy's rollouts before the steps consist of: pieces that each end with
  // a forward pass, which trains nothing.
  std::vector<Step> passes;
  StepSummary summary;
  std::vector<SpeedChange> changes;
  std::optional<SpeedDrift> drift;  // then changes is empty
  // By time; where no slice tells waits for input from computing. Without steps of a program
  // without Python alone.
  std::vector<Moment> moments;
  // Run::threads of the training process, where no Python runs in it, that work while the training
  // thread computes, too: they make its batches, or something else ahead of it.
  std::vector<uint32_t> working_ahead;
};

}  // namespace flatout::model

// What the training thread did in the time that no slice explains: it made or awaited the batch, it
// ran the model, or it did something else. Stack readings tell, line by line of the training loop.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/run.h"
#include "timeline/painter.h"

namespace flatout::timeline {

/// Time of a step before its backward pass that no slice explains.
struct OpenTime {
  TimePoint begin, end;
  uint32_t step = 0;         // index into the steps being built
  bool after_input = false;  // a slice of input wait lies before it in the step
  // The verdict, in this order within the time; the rest is forward (or compute):
  Nanos other{};
  Nanos input{};
};

struct OpenTimeContext {
  model::ThreadId thread = 0;
  /// Forward passes are told by slices: what lies before the first is not forward.
  bool real_forward = false;
  /// There are slices of forward, backward or optimizer at all.
  bool phases = true;
  /// It waits for threads that compute for it (beside_training.h).
  bool team = false;
  /// No Python: each reading tells by itself what the thread does, and not its line, which may hold
  /// a whole loop that the compiler has inlined.
  bool native = false;
};

/// Whether this function makes or hands out an item for a loop around it: it has no training loop
/// within, even if nearly all the time goes there.
bool makes_items(std::string_view function, std::string_view file);

/// `painted`: the training thread's. Fills in the verdict of each of `open` (ascending in time).
/// Returns what each reading of the training thread in these times says.
std::vector<model::Moment> judge_open_times(const model::Run& run, std::span<const Painted> painted,
                                            const OpenTimeContext& context,
                                            std::vector<OpenTime>& open);

}  // namespace flatout::timeline

// Slices: intervals that an agent inside the job measured.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "model/stack.h"

namespace flatout::model {

/// Same numbers as flatout_slice_kind in wire/messages.h, which documents value and value2.
enum class SliceKind : uint32_t {
  kStep = 1,
  kInputWait = 2,
  kForward = 3,
  kBackward = 4,
  kOptimizer = 5,
  kH2d = 6,
  kSync = 7,
  kCommunication = 8,
  kCheckpoint = 9,
  kGc = 10,
  kValidation = 11,
  kLoaderStart = 12,
  kFetch = 13,
  kSample = 14,
  kCollate = 15,
  kHandover = 16,
  kWorker = 17,
  kLogging = 18,
  kZeroGrad = 19,
  kPhase = 20,
  kEpoch = 21,
  kFeed = 22,
  kDeviceIdle = 23,
  kProfiler = 24,
};
std::string_view name(SliceKind kind);

struct Slice {
  TimePoint begin, end;
  SliceKind kind{};
  ThreadId thread = 0;
  StringId name = 0;
  int64_t value = 0;
  int64_t value2 = 0;

  Nanos length() const { return end - begin; }
};

}  // namespace flatout::model

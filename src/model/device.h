// Device windows: what a GPU did in pieces of the run that the agent recorded through CUPTI.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace flatout::model {

/// Same numbers as flatout_idle_cause in wire/messages.h, which says what each means; the agent
/// cannot know of kInput, which timeline finds.
enum class IdleCause : uint8_t { kHost, kLaunch, kSync, kRoundTrip, kDependency, kInput, kCount };
inline constexpr size_t kIdleCauses = static_cast<size_t>(IdleCause::kCount);
std::string_view name(IdleCause cause);  // "round_trip"

/// As flatout_device in wire/messages.h.
struct DeviceWindow {
  TimePoint begin, end;
  uint32_t process = 0;  // Run::processes
  uint32_t device = 0;   // as CUDA counts in that process
  Nanos busy{}, compute{}, communication{}, copies{};
  Nanos exposed_communication{}, exposed_copies{}, exposed_pageable{};
  std::array<Nanos, kIdleCauses> idle{};
  Nanos kernel_sum{}, filled{}, norm_sum{}, follow_sum{}, launch_sum{};
  uint64_t kernels = 0, launches = 0, copy_count = 0, copy_bytes = 0, lost = 0;

  Nanos length() const { return end - begin; }
};

/// All windows of one device of the training process together.
struct DeviceUse {
  DeviceWindow sum;  // of all; begin of the first, end of the last
  Nanos recorded{};  // their lengths
  int64_t windows = 0;

  /// Share of the recorded time.
  double share(Nanos part) const { return recorded.count() > 0 ? to_s(part) / to_s(recorded) : 0; }
  double idle(IdleCause cause) const { return share(sum.idle[static_cast<size_t>(cause)]); }
};

}  // namespace flatout::model

// Bounds of what packets can make a decoder keep, and helpers of its two halves.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace flatout::timeline {

// Far above what a real job needs.
inline constexpr size_t kMaxProcesses = 1 << 15;
inline constexpr size_t kMaxThreads = 1 << 17;
inline constexpr size_t kMaxEntities = 1 << 18;
inline constexpr size_t kMaxStringBytes = 16 << 20;
inline constexpr size_t kMaxStringSize = 4096;
inline constexpr size_t kMaxAgentStrings = 1 << 16;  // of one process
// Ids are places in the agent's table (agent/strings.c): the first may be any of them.
inline constexpr size_t kAgentSlots = 2048;
inline constexpr size_t kMaxFactBytes = 4 << 20;
inline constexpr size_t kMaxFactSize = 64 << 10;
inline constexpr size_t kMaxCounters = 4096;
inline constexpr size_t kMaxStacks = 1 << 20;
inline constexpr size_t kMaxMissing = 1000;
inline constexpr size_t kMaxGaps = 16'384;
inline constexpr uint32_t kMaxId = 1 << 22;
inline constexpr Nanos kMaxLength = std::chrono::hours(24 * 30);

// Agents' clocks are the recorder's; further away from what it has seen, a time is a lie.
inline constexpr Nanos kClockSlack = std::chrono::hours(1);

inline TimePoint time_of(uint64_t ns) {
  return time_point_ns(static_cast<int64_t>(std::min<uint64_t>(ns, INT64_MAX / 2)));
}

/// Takes the text up to the next NUL (or all of it) off the front.
inline std::string_view until_nul(std::string_view& text) {
  const size_t end = std::min(text.find('\0'), text.size());
  const std::string_view out = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return out;
}

}  // namespace flatout::timeline

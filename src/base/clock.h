// Time as the whole program speaks of it: nanoseconds on CLOCK_MONOTONIC.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace flatout {

using Nanos = std::chrono::nanoseconds;

/// CLOCK_MONOTONIC, the clock that agents and recorder share.
struct MonotonicClock {
  using rep = int64_t;
  using period = std::nano;
  using duration = Nanos;
  using time_point = std::chrono::time_point<MonotonicClock, Nanos>;
  static constexpr bool is_steady = true;
  static time_point now() {
    timespec ts{};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return time_point(Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec));
  }
};

using TimePoint = MonotonicClock::time_point;

constexpr TimePoint time_point_ns(int64_t ns) { return TimePoint(Nanos(ns)); }
constexpr int64_t to_ns(TimePoint t) { return t.time_since_epoch().count(); }
constexpr double to_s(Nanos d) { return static_cast<double>(d.count()) * 1e-9; }
constexpr double to_ms(Nanos d) { return static_cast<double>(d.count()) * 1e-6; }
constexpr Nanos nanos(double ns) { return Nanos(static_cast<int64_t>(ns)); }

/// Nanoseconds since the Unix epoch, for labels only: never subtract two of these.
inline int64_t unix_now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_REALTIME, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace flatout

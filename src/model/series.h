// Series: the readings of one signal for one entity, in time order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/signal.h"

namespace flatout::model {

using EntityId = uint32_t;  // index into Run::entities
inline constexpr EntityId kNoEntity = 0xFFFFFFFF;

struct Entity {
  EntityKind kind = EntityKind::kHost;
  int64_t key = 0;
  EntityId parent = kNoEntity;
  std::string name;
};

struct Reading {
  TimePoint at;
  double value = 0;
};

struct Series {
  SignalId signal{};
  EntityId entity = kNoEntity;
  std::vector<Reading> readings;

  bool empty() const { return readings.empty(); }
  std::optional<double> last() const;
  /// Value at `t`: interpolated between readings for counters, the latest one before for gauges.
  /// Outside the readings: the nearest. nullopt if empty.
  std::optional<double> at(TimePoint t) const;
  /// Increase of a counter within [from, to], interpolated, restarts of the counter tolerated.
  /// nullopt unless at least two readings overlap the window.
  std::optional<double> increase(TimePoint from, TimePoint to) const;
  /// The most that a counter can have grown within [from, to]: from the last reading before to the
  /// first one after. nullopt unless there are both.
  std::optional<double> most_increase(TimePoint from, TimePoint to) const;
  /// Values within [from, to].
  std::vector<double> values(TimePoint from, TimePoint to) const;
  std::optional<double> max(TimePoint from, TimePoint to) const;
  std::optional<double> min(TimePoint from, TimePoint to) const;
};

}  // namespace flatout::model

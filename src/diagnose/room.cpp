#include "diagnose/room.h"

#include <algorithm>

namespace flatout::diagnose {

using model::Series;

std::optional<Room> room(const Series* free, const Series* total) {
  if (free == nullptr || total == nullptr || free->empty() || !total->last()) return std::nullopt;
  Room out{free->readings.front().value, *total->last()};
  for (const model::Reading& r : free->readings) out.least = std::min(out.least, r.value);
  return out;
}

std::optional<Room> shm_room(const RunView& view) {
  const auto& entities = view.run().entities;
  for (model::EntityId i = 0; i < entities.size(); ++i) {
    if (entities[i].kind != model::EntityKind::kMount || entities[i].name != "/dev/shm") continue;
    const auto found = room(view.series(model::SignalId::kMountFree, i),
                            view.series(model::SignalId::kMountTotal, i));
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<double> lowest_limit(const model::Run& run, model::SignalId limit) {
  std::optional<double> lowest;
  for (const Series* s : run.all(limit)) {
    const auto last = s->last();
    if (last && *last > 0 && (!lowest || *last < *lowest)) lowest = last;
  }
  return lowest;
}

}  // namespace flatout::diagnose

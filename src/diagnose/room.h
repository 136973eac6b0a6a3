// How much was left of what has a limit: memory, /dev/shm, a quota.
#pragma once

#include <optional>

#include "diagnose/view.h"

namespace flatout::diagnose {

struct Room {
  double least = 0, total = 0;  // of what is free, at any time of the run
};

/// From the gauges of what is free and of what there is; nullopt where either was not measured.
std::optional<Room> room(const model::Series* free, const model::Series* total);
/// In bytes.
std::optional<Room> shm_room(const RunView& view);
/// The limit that counts among those of several levels or groups; nullopt without any.
std::optional<double> lowest_limit(const model::Run& run, model::SignalId limit);

}  // namespace flatout::diagnose

// Lines to blame that time spent does not show: where the job made a setting, which container
// keeps growing (both told by the agent), who touches memory for the first time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// "/home/u/train.py:27 in main", as the agent tells a place.
std::optional<model::Where> parse_place(std::string_view text);

/// Where a process of the job made a setting itself: `key` is the fact, as "affinity.set_at". Of
/// several the training process comes first. nullopt where the setting came from outside.
std::optional<model::Where> setting_line(const model::Run& run, std::string_view key);

/// A container that grew for as long as it was looked at.
struct Grower {
  std::string name;  // "history.values"
  std::optional<model::Where> where;
  std::string how;  // "340 items, 1.00 a step"
};
/// The fastest grower of a process.
std::optional<Grower> grower(const model::Run& run, model::ProcessId process);

/// The user's line at which a process most often was given new memory.
std::optional<model::Where> touching_line(const RunView& view, model::ProcessId process);

}  // namespace flatout::diagnose

// Lines to blame that time spent does not show: where the job made a setting, which container
// keeps growing, where files are opened, how many operations a step has (all told by the agent),
// who touches memory first.
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

/// " (train.py:31)"; "" for none.
std::string in_brackets(const std::optional<model::Where>& line);

/// Threads that PyTorch computes with; 1 where that is not known.
double torch_threads(const model::Run& run);

/// Operations of the autograd graph of one step, at least; 0: not known.
double graph_operations(const model::Run& run);

/// A container that grew for as long as it was looked at.
struct Grower {
  std::string name;  // "history.values"
  std::optional<model::Where> where;
  std::string how;  // "340 items, 1.00 a step, 4096 bytes each"
};
/// The fastest grower of a process that grows by so many bytes a step; nullopt where what it was
/// seen to keep is next to nothing of that.
std::optional<Grower> grower(const model::Run& run, model::ProcessId process, double bytes);

/// Where the process behind an entity opens files that it never closes.
std::optional<model::Where> opening_line(const model::Run& run, model::EntityId of);

/// The user's line at which a process most often was given new memory while it grew.
std::optional<model::Where> touching_line(const RunView& view, model::ProcessId process);

/// A process's own memory over time, all that it holds where the kernel does not tell them apart;
/// nullptr where nothing is known.
const model::Series* own_memory(const RunView& view, model::ProcessId process);

/// The process of the job whose own memory grew most from the first step on.
struct Grown {
  model::ProcessId process = model::kNone;
  const model::Series* series = nullptr;
  double most = 0, by = 0;  // bytes
};
/// What a process was seen to grow by since the steps began; series null: it was not seen.
Grown grown(const RunView& view, model::ProcessId process);
Grown grown_most(const RunView& view);

/// The line that keeps what a process grew by, as well as it can be told.
std::optional<model::Where> growing_line(const RunView& view, const Grown& grown);

}  // namespace flatout::diagnose

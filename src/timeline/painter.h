// Flattens the nested slices of one thread: each moment belongs to one of them.
#pragma once

#include <span>
#include <vector>

#include "model/slice.h"
#include "model/step.h"

namespace flatout::timeline {

/// A piece of a thread's time. Pieces do not overlap; between them nothing is known.
struct Painted {
  TimePoint begin, end;
  model::SliceKind kind{};  // one of those that paints() knows, kInputWait for all input
};

/// Whether slices of this kind say what the thread did (a GC pause stays with its phase).
bool paints(model::SliceKind kind);

/// `slices`: of one thread, in any order; kinds that do not paint are skipped.
/// At each moment the slice that began last wins (of two that began at once the shorter one), but
/// for slices that begin within
///   - a validation phase or a checkpoint: all of these is one;
///   - an input wait: it stays one, save copies to the device, communication and checkpoints;
///   - a backward pass: a forward pass in it (activation checkpointing) is part of it.
/// The forward and backward passes that an optimizer runs itself (closures) are theirs.
std::vector<Painted> paint(std::span<const model::Slice> slices);

}  // namespace flatout::timeline

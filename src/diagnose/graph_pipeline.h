// The stages of a pipeline that a framework runs by itself, without Python: TensorFlow's tf.data,
// as its own model of them tells (the fact tf.data.stages, docs/run-folder.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/finding.h"
#include "model/run.h"

namespace flatout::diagnose {

struct GraphStage {
  std::string name;                   // "ParallelMapV2"
  double seconds = 0;                 // of threads' time, per batch of the pipeline
  bool ahead = false;                 // makes its elements before they are asked for
  int threads = 1;                    // that work at it side by side
  std::optional<model::Where> where;  // the line that made it
};

struct GraphPipeline {
  std::vector<GraphStage> stages;  // the last first
  double seconds = 0;              // of all of them, per batch

  bool known() const { return seconds > 0; }
  /// The stage that takes most. There is one if known().
  const GraphStage& heaviest() const;
  /// Whether anything between the loop and that stage works ahead.
  bool ahead() const;
  /// The stage whose name has this in it; nullptr: none.
  const GraphStage* find(std::string_view part) const;
};

/// Empty where the job has none.
GraphPipeline graph_pipeline(const model::Run& run);

}  // namespace flatout::diagnose

// TensorFlow's and JAX's own formats: XSpace (TensorFlow 2, JAX;
// tsl/profiler/protobuf/xplane.proto) and RunMetadata (TensorFlow 1;
// tensorflow/core/protobuf/config.proto, framework/step_stats.proto).
#pragma once

#include <string_view>

#include "timeline/trace_builder.h"

namespace flatout::timeline {

bool looks_like_xspace(std::string_view head);
bool looks_like_run_metadata(std::string_view head);

/// Adds the events of all planes. False where the bytes end or break within a plane: what came
/// before is kept.
bool import_xspace(std::string_view bytes, TraceBuilder& builder);
bool import_run_metadata(std::string_view bytes, TraceBuilder& builder);

}  // namespace flatout::timeline

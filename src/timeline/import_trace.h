// Reads a trace of any supported format; which one, its content says.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "model/trace.h"
#include "timeline/trace_builder.h"

namespace flatout::timeline {

/// Errors: what the file system says; kBadInput for what is no trace, with what it seems to be.
Result<model::Trace> import_trace(const std::string& path, const TraceOptions& options = {});
/// The same from bytes in memory.
Result<model::Trace> import_trace_bytes(std::string_view bytes, const std::string& name = "trace",
                                        const TraceOptions& options = {});

/// Whether the file is Chrome JSON, by its first bytes.
Result<bool> is_chrome(const std::string& path);

}  // namespace flatout::timeline

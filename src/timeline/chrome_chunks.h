// Chrome JSON by several threads: the text is cut between events, each piece becomes columns of its
// own, and these are joined in the file's order. The result is the same, row by row, as that of one
// thread.
#pragma once

#include <optional>
#include <string>

#include "timeline/byte_source.h"
#include "timeline/trace_builder.h"

namespace flatout::timeline {

inline constexpr size_t kChunk = 4 << 20;  // bytes of text that a thread takes at once

struct ChunkedImport {
  ScanReport report;
  TraceBuilder builder;
};

/// Reads `source` to its end. nullopt: where to cut could not be told (damage, slices that begin in
/// one piece and end in another): read it from the start by one thread. Errors: what the source
/// says.
Result<std::optional<ChunkedImport>> import_chunks(ByteSource& source, const TraceOptions& options,
                                                   unsigned threads, size_t chunk = kChunk);

/// The same of a plain file of `size` bytes, where each thread reads its own piece through a small
/// window: text that was read goes through no slower memory than the core's own cache.
Result<std::optional<ChunkedImport>> import_file_chunks(const std::string& path, uint64_t size,
                                                        const TraceOptions& options,
                                                        unsigned threads, size_t chunk = kChunk);

}  // namespace flatout::timeline

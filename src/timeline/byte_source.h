// Bytes of a trace file, plain or gzipped, in order. Gzip is known by its content, not by the
// file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace flatout::timeline {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Up to `size` bytes to `to`; 0 at the end. A gzip stream that is cut off or damaged ends there,
  /// and damaged() says so.
  virtual Result<size_t> read(char* to, size_t size) = 0;
  virtual bool damaged() const { return false; }
};

/// Opens `path`. Gzip is unpacked in a thread of its own, or by who reads (`ahead` false). Errors:
/// kNotFound, kDenied, kBadInput for a directory.
Result<std::unique_ptr<ByteSource>> open_source(const std::string& path, bool ahead = true);
/// A path under which the file can be read more than once: a pipe's bytes go to a file without a
/// name, which lives as long as this process.
Result<std::string> rereadable(const std::string& path);
/// Bytes [begin, end) of a plain file.
Result<std::unique_ptr<ByteSource>> open_range(const std::string& path, uint64_t begin,
                                               uint64_t end);
/// Bytes in memory, which must outlive it; gzip is unpacked.
std::unique_ptr<ByteSource> memory_source(std::string_view bytes);

/// Whether these first bytes are gzip's.
bool looks_gzipped(std::string_view head);

/// Reads all of it, at most `limit` bytes. Errors: kFull beyond that.
Result<std::string> read_all(ByteSource& source, size_t limit);

}  // namespace flatout::timeline

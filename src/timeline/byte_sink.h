// A file that is written in pieces, gzipped where its name ends in .gz, and appears under its name
// only once it is whole.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace flatout::timeline {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::string_view bytes) = 0;
  /// Ends the file and gives it its name. Errors of all writes come out here.
  virtual Status finish() = 0;
};

/// Errors: kNotFound, kDenied.
Result<std::unique_ptr<ByteSink>> create_sink(const std::string& path);
/// Appends to `out`, which must outlive it.
std::unique_ptr<ByteSink> string_sink(std::string& out);

}  // namespace flatout::timeline

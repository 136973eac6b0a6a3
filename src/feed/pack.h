// Our own file of samples: pictures as they are, one after the other, then a table of where they
// lie, with labels and checksums. Beside it lies its seek index, NAME.seek.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "feed/source.h"

namespace flatout::feed {

struct PackResult {
  uint64_t samples = 0;
  uint64_t bytes = 0;    // of the file
  uint64_t indexed = 0;  // that have a seek index
};

/// Packs all samples of `source` into the file `path`; `bad` is told of those that cannot be read,
/// which are packed as they are. The file and its index appear when they are whole. threads 0: one
/// a core. Errors: kIo, kDenied, and those of Source::read.
Result<PackResult> pack(const Source& source, const std::string& path, int threads,
                        const std::function<void(const BadSample&)>& bad);

/// Errors: kNotFound, kDenied, kIo, kBadInput: no such file, or its table is damaged.
Result<std::unique_ptr<Source>> open_pack(const std::string& path);

/// The first bytes of such a file.
constexpr std::string_view kPackMagic = "FLTPACK1";

}  // namespace flatout::feed

// Reads a run folder back into a Run, also one of a recording that was killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/run.h"

namespace flatout::timeline {

/// What had to be skipped, for a message to the user.
struct FolderDamage {
  uint64_t blocks = 0;  // read in full
  uint64_t bad = 0;     // wrong checksum, cut off or not a block: skipped to the next one
};

/// Reads events.bin and series.bin of `folder`, merged by time. Steps are found too.
/// `max_bytes`: what the Run may take; the middle of a long one is thinned.
/// Errors: kNotFound (not a run folder), kUnsupported (a newer version wrote it), kIo.
Result<model::Run> read_run_folder(const std::string& folder, FolderDamage* damage = nullptr,
                                   size_t max_bytes = size_t{256} << 20);

}  // namespace flatout::timeline

// Writes a Run as Chrome JSON, gzipped, which Perfetto and chrome://tracing open.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "model/run.h"

namespace flatout::timeline {

struct ChromeOptions {
  size_t max_events = 200'000;  // above, the shortest slices are left out
};

/// The JSON text: tracks for steps, parts, loader workers, thread states, counters.
std::string chrome_json(const model::Run& run, const ChromeOptions& options = {});
/// chrome_json() gzipped to `path` by a temporary name and rename.
Status write_chrome_trace(const model::Run& run, const std::string& path,
                          const ChromeOptions& options = {});

}  // namespace flatout::timeline

// Writes a Run as Chrome JSON, gzipped, which Perfetto and chrome://tracing open.
#pragma once

#include <cstddef>
#include <memory>
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

/// The tracks of a job's ranks in one trace, on the first one's clock. Ranks are added one after
/// another, so that one Run alone need be in memory.
class MergedTrace {
 public:
  /// `begin`: from which the trace counts, by the first rank's clock. The events that
  /// ChromeOptions allow are shared by `ranks`.
  MergedTrace(TimePoint begin, size_t ranks, const ChromeOptions& options = {});
  ~MergedTrace();
  MergedTrace(const MergedTrace&) = delete;
  MergedTrace& operator=(const MergedTrace&) = delete;

  /// `clock`: what the run's own clock is behind the first rank's (model::Rank::clock).
  void add(const model::Run& run, int32_t rank, Nanos clock);
  /// Gzipped, by a temporary name and rename. Call once.
  Status write(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flatout::timeline

// Reads a run folder back into a Run, also one of a recording that was killed or still goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
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
/// Errors: kNotFound (not a run folder), kUnsupported (a newer version wrote it), kIo (also where a
/// file is lost: missing, emptied or damaged all through). Damage in parts of it is in `damage`,
/// and in Run::missing as "recording".
Result<model::Run> read_run_folder(const std::string& folder, FolderDamage* damage = nullptr,
                                   size_t max_bytes = size_t{256} << 20);

/// Follows a run folder while it is being written: what was read once is not read again, and the
/// Run stays within bounds as the recorder's own does.
class FolderFollower {
 public:
  /// Opens only regular files that lie in `folder` itself, never through a link, and never waits
  /// for one. `max_bytes`: as for read_run_folder(). Errors: kNotFound, kIo.
  static Result<std::unique_ptr<FolderFollower>> open(const std::string& folder, size_t max_bytes);
  ~FolderFollower();
  FolderFollower(const FolderFollower&) = delete;
  FolderFollower& operator=(const FolderFollower&) = delete;

  /// Takes in what has been written since. `ended`: nothing will follow, so a block that is cut off
  /// is damage and not one under way; what is lost stands in Run::missing then, as "recording".
  /// True if there was anything.
  bool read(TimePoint now, bool ended);
  /// As of the last read(); its steps are not found yet.
  model::Run& run();
  FolderDamage damage() const;

 private:
  struct State;
  explicit FolderFollower(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flatout::timeline

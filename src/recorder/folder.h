// The run folder: its name, its place, `latest`, and the pruning of old ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::recorder {

struct FolderName {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // RANK and its like, XDG_STATE_HOME, HOME
  std::string fixed;                     // --out
};

struct RunFolder {
  std::string path;            // empty: nowhere could be written
  std::string parent;          // flatout-runs; empty with --out
  std::string notice;          // for the user, where it is not the usual place
  bool replaced = false;       // an earlier run was in it
  std::shared_ptr<void> held;  // with --out: no other flatout takes the folder while this lives
};

/// "train" for `python train.py`, "torch.distributed.run" for `python -m ...`, else the program.
std::string short_name(const std::vector<std::string>& command);
/// "YYYYmmdd-HHMMSS-NAME-HOST[-rRANK]-PID".
std::string folder_name(const FolderName& name, int64_t unix_ns, int32_t pid);

/// Makes the folder (0700, with .gitignore). With --out an error where that cannot be written, is
/// another flatout's that still records, or holds something else than a run, which is replaced;
/// without, other places are tried, and none at all leaves path empty with a notice. The path is
/// absolute.
Result<RunFolder> make_run_folder(const FolderName& name);
/// Points `latest` at it: there is a run now.
void publish(const RunFolder& folder);
/// Removes it: there was no run.
void discard(const RunFolder& folder);

/// Whether `path` was made by flatout: by the kind of its files, not by its name alone.
bool is_run_folder(const std::string& path);
/// Whether a recorder holds it; false where the file system has no locks.
bool is_live(const std::string& path);

/// Removes the run folders in `parent` that began first until at most `keep` are left and they take
/// at most `max_bytes`; the last one stays. Only ones that flatout made, whose run has ended, and
/// only flatout's files in them. Returns how many were removed.
size_t prune_runs(const std::string& parent, size_t keep, uint64_t max_bytes);

}  // namespace flatout::recorder

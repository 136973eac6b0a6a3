// Which rank of a job this is, told by the environment that launchers give to their processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flatout::recorder {

struct RankPlace {
  std::string launcher;  // "torchrun", "openmpi", ...; empty: this is no rank of several
  int32_t rank = -1;
  int32_t world = 0;   // ranks in all; 0 not known (a Kubernetes job does not say)
  int32_t local = -1;  // among those of its node; -1 not known
  int32_t node = -1;
  /// Equal for the ranks of one launch: the launcher's own names for it.
  std::string job;

  bool is_rank() const { return rank >= 0; }
};

/// The innermost launcher counts: torchrun within a Slurm step gives the rank.
RankPlace rank_place(const std::vector<std::string>& environment);

/// Whether a launcher that MPI ranks may come from started this process, or is what the command
/// starts.
bool may_use_mpi(const std::vector<std::string>& command,
                 const std::vector<std::string>& environment);

/// This machine's, without its domain; "" where it has none.
std::string host_name();

/// "rank.json" of a run folder: where the others find what belongs together.
std::string rank_file(const RankPlace& place, int32_t launcher_pid, int64_t begin_unix_ns);

/// What a rank.json says. Errors of the file itself give is_rank() == false.
struct RankFile {
  RankPlace place;
  std::string host;
  int32_t launcher_pid = 0;
  int64_t begin_unix_ns = 0;
};
RankFile read_rank_file(const std::string& folder);

/// The run folders beside `folder` of the other ranks of its launch, by rank; of a rank that was
/// started again the last one.
std::vector<std::string> folders_of_launch(const std::string& folder);

}  // namespace flatout::recorder

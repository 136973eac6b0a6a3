// One report of the run folders of a job's ranks, and the folder that `flatout merge -o` makes of
// it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/finding.h"
#include "model/rank.h"
#include "model/run.h"

namespace flatout::cli {

struct Merged {
  model::Diagnosis diagnosis;  // with all ranks
  model::Run run;  // that curves and stacks are of: of a rank that is late, else the first
};
/// Errors: kNotFound where none of the folders can be read.
Result<Merged> merge_folders(const std::vector<std::string>& folders);

/// The recording of one of the ranks that read_ranks() found.
Result<model::Run> run_of(const model::Rank& rank);

/// findings.json, report.html, trace.json.gz with the tracks of all ranks, and merge.json, which
/// says what it was made of. The folder is made where it is not there.
Status write_merged(const std::string& folder, const Merged& merged,
                    const std::vector<std::string>& folders);

/// The run folders that a merged one was made of; empty for any other folder.
std::vector<std::string> merged_from(const std::string& folder);

}  // namespace flatout::cli

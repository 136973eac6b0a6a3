// All that training needs to go on to the bit: parameters, statistics, the optimizer's arrays, and
// how far it was. A safetensors file (tensor_file.h).
#pragma once

#include <string>

#include "base/result.h"
#include "train/learner.h"
#include "train/train.h"

namespace flatout::train {

struct Progress {
  int64_t step = 0;    // steps done
  uint32_t epoch = 0;  // where the next batch begins, for room feed
  uint64_t position = 0;
};

/// Writes a new file and renames it. Errors: of the file.
Status save_checkpoint(const std::string& path, const TrainOptions& options, Learner& learner,
                       const Progress& progress);

/// Errors: of the file; kBadInput where it is of another job, saying what differs.
Result<Progress> resume_checkpoint(const std::string& path, const TrainOptions& options,
                                   Learner& learner);

/// Parameters and statistics alone. Errors: as above.
Status load_weights(const std::string& path, Learner& learner);

/// FNV-1a of parameters and statistics: equal runs have equal digests.
uint32_t digest(Learner& learner);

}  // namespace flatout::train

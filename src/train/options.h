// What the trainer makes of its options before it does anything.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "train/inject.h"
#include "train/ranks.h"
#include "train/train.h"

namespace flatout::train {

/// Whether they can be followed. The model is chosen already. Errors: kBadInput.
Status check_options(const TrainOptions& options, const Causes& causes, const RankPlace& place);

/// "--nccl has no effect: there is one rank", of each option that changes nothing of this job.
std::vector<std::string> ignored_options(const TrainOptions& options, const Causes& causes,
                                         const RankPlace& place);

}  // namespace flatout::train

// What the job's present input pipeline gives on the same pictures: torch's DataLoader over
// torchvision's ImageFolder, run by an interpreter of the user's choice.
#pragma once

#include <string>

#include "base/result.h"

namespace flatout::feed {

struct DataLoaderBench {
  uint64_t images = 0;
  int workers = 0;
  double images_per_s = 0;
  double cpu_ms_per_image = 0;
  std::string versions;
};

/// One epoch of at most 1,024 pictures, after a batch to warm up: random-resized-crop, flip,
/// normalise, as feed's own. Errors: kNotFound (no such interpreter), kUnsupported (it lacks
/// torchvision, or the path is no ImageFolder: what it said last).
Result<DataLoaderBench> run_dataloader(const std::string& python, const std::string& path, int size,
                                       int batch, int workers);

}  // namespace flatout::feed

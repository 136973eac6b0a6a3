// flatout feed bench: what a data set costs through the pipeline, on this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "feed/dataloader.h"
#include "feed/loader.h"

namespace flatout::feed {

struct BenchEpoch {
  uint64_t images = 0;
  double images_per_s = 0;
  double cpu_ms_per_image = 0;
  double first_batch_ms = 0;  // from asking for it; in the first epoch from opening the data set
};

struct BenchStage {
  std::string name;
  double cpu_ms_per_image = 0;
};

struct BenchResult {
  std::vector<BenchEpoch> epochs;
  double peak_pss_mb = 0;  // 0 where the kernel does not tell
  std::vector<BenchStage> stages;
  Report report;
  int processors = 1;  // that this process may use
  /// What they could do if they did nothing else, by the last epoch's CPU time.
  double limit_images_per_s = 0;
  std::optional<DataLoaderBench> dataloader;
};

/// Runs so many epochs. Errors: those of open_source and Loader.
Result<BenchResult> run_bench(const std::string& path, LoaderOptions options, int epochs);

std::string bench_json(const BenchResult& result);
std::string bench_text(const BenchResult& result);

}  // namespace flatout::feed

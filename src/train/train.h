// The embedded trainer: a small convolutional classifier on generated images, with loader threads,
// marked through flatout/marker.h. It needs neither Python nor a GPU nor a data set, and can be
// given a real cause of slowness to be found (`--inject`).
#pragma once

#include <cstdint>
#include <string>

namespace flatout::train {

struct TrainOptions {
  int64_t steps = 300;
  int batch = 32;
  int threads = 0;         // that compute; 0: by the number of cores
  int loaders = 0;         // that make batches; 0: by the number of cores
  int64_t samples = 1024;  // of the data set
  uint64_t seed = 1;
  std::string model = "small";  // "small" or "large"
  std::string data;             // where temporary files go; "": $TMPDIR
  std::string checkpoint;       // a file for the weights, saved after every epoch; "": none
  std::string inject = "none";  // a cause of cause_list(), "none", or "list"
  double hang_seconds = 0;      // of stall.hang: go on after that; 0: never
  bool quiet = false;           // only the last line
  // Instead of training: so many busy processes until this one is ended or the time is up.
  int neighbours = 0;
  double seconds = 60;
};

/// Trains, or prints the list of causes. Exit code: 0; 1 failed; 2 bad options.
int train_main(const TrainOptions& options);

/// What stands behind `--inject list`: a line for each cause.
std::string cause_list();

}  // namespace flatout::train

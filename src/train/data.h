// The data set of a training run: generated, out of MNIST's or CIFAR-10's files, or a folder of
// pictures through room feed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "feed/source.h"
#include "train/inject.h"
#include "train/learner.h"
#include "train/loader.h"

namespace flatout::train {

struct DataSet {
  std::unique_ptr<Source> source;        // null: `folder`
  std::unique_ptr<feed::Source> folder;  // moves into the batches
  int classes = kClasses;
  int64_t samples = 0;
  std::vector<Batch> validation;  // may be empty
};

/// Opens what `options` ask for, for a model that wants `view`; `temporary` is made where a cause
/// needs files. Errors: of the files; kBadInput.
Result<DataSet> open_data(const TrainOptions& options, const Causes& causes, int cores,
                          const View& view, std::unique_ptr<TemporaryFolder>& temporary);

/// Where batches begin, and which share of each is this rank's.
struct BatchOptions {
  View view;
  int part = 0, parts = 1;
  int64_t first_step = 0;
  uint32_t epoch = 0;  // the same place for room feed, as the last batch before it says
  uint64_t position = 0;
};

/// Starts the threads that make batches. `data` and `injection` must outlive them.
Result<std::unique_ptr<Batches>> start_batches(DataSet& data, const TrainOptions& options,
                                               const BatchOptions& batches, const Plan& plan,
                                               Injection& injection);

}  // namespace flatout::train

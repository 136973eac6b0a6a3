// flatout train: the embedded trainer.
#include "train/train.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace flatout::cli {
namespace {

const Usage kTrain{
    "train",
    "[options]",
    "Trains a small classifier on generated pictures; needs neither Python nor a GPU.",
    "  flatout train                                            # a healthy job\n"
    "  flatout train --inject list                              # the causes that can be built in\n"
    "  flatout run -- flatout train --inject input.decode_cpu   # see one found",
    {"inject", "steps", "batch", "threads", "loaders", "samples", "seed", "model", "data",
     "checkpoint", "hang_seconds", "neighbours", "seconds", "quiet"}};

}  // namespace

int train(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kTrain, arguments, code);
  if (!settings) return code;
  flatout::train::TrainOptions options;
  options.steps = static_cast<int64_t>(settings->steps);
  options.batch = static_cast<int>(settings->batch);
  options.threads = static_cast<int>(settings->threads);
  options.loaders = static_cast<int>(settings->loaders);
  options.samples = static_cast<int64_t>(settings->samples);
  options.seed = static_cast<uint64_t>(settings->seed);
  options.model = settings->model;
  options.data = settings->data;
  options.checkpoint = settings->checkpoint;
  options.inject = settings->inject;
  options.hang_seconds = settings->hang_seconds;
  options.quiet = settings->quiet;
  options.neighbours = static_cast<int>(settings->neighbours);
  if (settings->seconds > 0) options.seconds = settings->seconds;
  return flatout::train::train_main(options);
}

}  // namespace flatout::cli

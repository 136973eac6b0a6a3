// flatout train: the embedded trainer.
#include "train/train.h"

#include <fmt/format.h>

#include "base/number.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace flatout::cli {
namespace {

const Usage kTrain{
    "train",
    "[options]",
    "Trains a small classifier on generated or given pictures; needs neither Python nor a GPU.",
    "  flatout train                                            # a healthy job\n"
    "  flatout train --inject list                              # the causes that can be built in\n"
    "  flatout run -- flatout train --inject input.decode_cpu   # see one found\n"
    "  flatout run -- flatout train --inject input.collate --inject stall.logging   # or two\n"
    "  flatout train --model resnet20 --data cifar-10-batches-bin --checkpoint r20.safetensors\n"
    "  flatout train --model resnet20 --replicas 2 --sync-batch-norm   # mirrored data parallel\n"
    "  mpirun -n 4 flatout train --model lenet                  # or torchrun --no-python, or srun",
    {"inject",          "model",     "data",          "classes",      "steps",
     "batch",           "samples",   "seed",          "plain",        "threads",
     "loaders",         "optimizer", "learning_rate", "momentum",     "weight_decay",
     "checkpoint",      "resume",    "weights",       "replicas",     "device_memory",
     "sync_batch_norm", "nccl",      "rank_timeout",  "hang_seconds", "neighbours",
     "seconds",         "quiet"},
    true};

}  // namespace

int train(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kTrain, arguments, code);
  if (!settings) return code;
  flatout::train::TrainOptions options;
  options.steps = settings->steps;
  options.batch = saturate<int>(settings->batch);
  options.threads = saturate<int>(settings->threads);
  options.loaders = saturate<int>(settings->loaders);
  options.samples = settings->samples;
  options.seed = static_cast<uint64_t>(settings->seed);
  options.model = settings->model;
  options.data = settings->data;
  options.classes = static_cast<int>(settings->classes);
  options.plain = settings->plain;
  options.checkpoint = settings->checkpoint;
  options.resume = settings->resume;
  options.weights = settings->weights;
  options.optimizer = settings->optimizer;
  options.learning_rate = settings->learning_rate;
  options.momentum = settings->momentum;
  options.weight_decay = settings->weight_decay;
  options.replicas = saturate<int>(settings->replicas);
  options.sync_batch_norm = settings->sync_batch_norm;
  options.nccl = settings->nccl;
  options.rank_timeout = settings->rank_timeout;
  options.inject = settings->inject;
  options.hang_seconds = settings->hang_seconds;
  options.quiet = settings->quiet;
  options.json = settings->json;
  options.neighbours = saturate<int>(settings->neighbours);
  options.seconds = settings->seconds;
  if (!settings->device_memory.empty()) {
    const auto bytes = parse_bytes(size_words(settings->device_memory));
    if (!bytes || *bytes == 0) {
      return bad_usage(
          fmt::format("--device-memory {} is no size", escape_terminal(settings->device_memory)),
          "--device-memory 512MiB");
    }
    options.device_bytes = *bytes;
  }
  return flatout::train::train_main(options);
}

}  // namespace flatout::cli

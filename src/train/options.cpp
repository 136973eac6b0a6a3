#include "train/options.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/text.h"

namespace flatout::train {

Status check_options(const TrainOptions& options, const Causes& causes, const RankPlace& place) {
  const auto bad = [](std::string message, std::string hint) {
    return Error{Code::kBadInput, std::move(message), std::move(hint)};
  };
  if (options.steps < 1 || options.samples < 1 || options.samples > 1 << 20 || options.batch < 1 ||
      options.batch > 4096 || options.threads < 0 || options.threads > 1024 ||
      options.loaders < 0 || options.loaders > 256 || options.replicas < 1 ||
      options.replicas > 256 || !(options.rank_timeout > 0 && options.rank_timeout <= 1e6)) {
    return bad("steps, samples, batch, threads, loaders, replicas or rank-timeout out of range",
               "see flatout train --help");
  }
  if (options.model != "small" && options.model != "large" && !is_layered(options.model)) {
    return bad(fmt::format("there is no model \"{}\"", escape_terminal(options.model)),
               "--model small, large, lenet or resnet20");
  }
  const int devices = options.replicas * place.size;
  if (devices > 1 && !is_layered(options.model)) {
    return bad(fmt::format("the model {} trains on one device", options.model),
               "--model lenet or --model resnet20");
  }
  if (options.batch % devices != 0) {
    return bad(
        fmt::format("a batch of {} cannot be split evenly over {} devices", options.batch, devices),
        "--batch takes all replicas' and ranks' samples together");
  }
  if (!options.data.empty() && !is_layered(options.model) && causes.none()) {
    return bad(fmt::format("the model {} does not learn from --data", options.model),
               "--model lenet or --model resnet20; small and large draw their own pictures");
  }
  if (struct stat info; ::stat(options.checkpoint.c_str(), &info) == 0 &&
                        (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))) {
    return bad(fmt::format("--checkpoint {} is a pipe", escape_terminal(options.checkpoint)),
               "name a file: it is written anew after every epoch");
  }
  if (!options.resume.empty() && !options.weights.empty()) {
    return bad("--resume and --weights both say what to begin with", "give one of them");
  }
  return {};
}

std::vector<std::string> ignored_options(const TrainOptions& options, const Causes& causes,
                                         const RankPlace& place) {
  const TrainOptions standard;
  std::vector<std::string> out;
  const auto without_effect = [&](bool given, std::string_view option, std::string_view why) {
    if (given) out.push_back(fmt::format("{} has no effect: {}", option, why));
  };
  const bool reads_data = !options.data.empty() && causes.none();
  without_effect(options.seconds > 0, "--seconds", "it is for --neighbours");
  without_effect(options.hang_seconds > 0 && !causes.has(Cause::kHang), "--hang-seconds",
                 "it is for --inject stall.hang");
  without_effect(options.classes > 0 && !reads_data, "--classes",
                 "generated pictures are of four classes; it is for those of --data");
  without_effect(options.samples != standard.samples && reads_data, "--samples",
                 "--data says itself how many there are");
  without_effect(options.nccl && place.size == 1, "--nccl", "there is one rank");
  without_effect(options.rank_timeout != standard.rank_timeout && place.size == 1, "--rank-timeout",
                 "there is one rank");
  without_effect(options.sync_batch_norm && options.model != "resnet20", "--sync-batch-norm",
                 fmt::format("the model {} has no batch norm", options.model));
  if (is_layered(options.model)) {
    without_effect(options.optimizer == "adam" && options.momentum != standard.momentum,
                   "--momentum", "it is for --optimizer sgd");
    return out;
  }
  const std::string plain = fmt::format("the model {} has its own", options.model);
  without_effect(options.optimizer != standard.optimizer, "--optimizer", plain);
  without_effect(options.learning_rate != 0, "--learning-rate", plain);
  without_effect(options.momentum != standard.momentum, "--momentum", plain);
  without_effect(options.weight_decay != standard.weight_decay, "--weight-decay",
                 fmt::format("the model {} has none", options.model));
  without_effect(options.device_bytes != 0, "--device-memory",
                 fmt::format("the model {} is on no device of its own", options.model));
  return out;
}

}  // namespace flatout::train

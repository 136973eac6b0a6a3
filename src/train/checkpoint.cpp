#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/output.h"
#include "base/text.h"
#include "train/tensor_file.h"

namespace flatout::train {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr const char* kDigest = "digest";  // of all arrays: the format has none of its own

uint32_t hash_bytes(uint32_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

uint32_t hash_of(std::string_view name, std::span<const float> values) {
  return hash_bytes(hash_bytes(2166136261u, name.data(), name.size()), values.data(),
                    values.size_bytes());
}

/// The arrays of a file, as they were saved. Others' files do not say what that was.
Result<TensorFile> read_whole(const std::string& path) {
  FLATOUT_TRY(TensorFile file, read_tensors(path));
  const auto saved = file.metadata.find(kDigest);
  if (saved == file.metadata.end()) return file;
  uint32_t sum = 0;
  for (const auto& [name, array] : file.arrays) sum += hash_of(name, array.values);
  if (saved->second == std::to_string(sum)) return file;
  return Error{Code::kBadInput,
               escape_terminal(path) + " is damaged: its arrays are not those that were saved",
               "an earlier checkpoint"};
}

/// What a batch, and so every bit behind it, depends on.
Metadata job_of(const TrainOptions& options) {
  return {{"model", options.model},
          {"optimizer", options.optimizer},
          {"batch", std::to_string(options.batch)},
          {"seed", std::to_string(options.seed)},
          {"samples", std::to_string(options.samples)},
          {"plain", options.plain ? "true" : "false"}};
}

std::vector<Tensor> weights_of(Learner& learner) {
  std::vector<Tensor> out = learner.state();
  std::erase_if(out, [](const Tensor& t) { return t.name.starts_with("optimizer."); });
  return out;
}

}  // namespace

Status save_checkpoint(const std::string& path, const TrainOptions& options, Learner& learner,
                       const Progress& progress) {
  Metadata metadata = job_of(options);
  metadata["format"] = "pt";  // how other readers lay the arrays out
  metadata["step"] = std::to_string(progress.step);
  metadata["epoch"] = std::to_string(progress.epoch);
  metadata["position"] = std::to_string(progress.position);
  uint32_t sum = 0;
  for (const Tensor& tensor : learner.state()) sum += hash_of(tensor.name, tensor.values);
  metadata[kDigest] = std::to_string(sum);
  return fs::write_output(path, encode_tensors(metadata, learner.state()));
}

Result<Progress> resume_checkpoint(const std::string& path, const TrainOptions& options,
                                   Learner& learner) {
  FLATOUT_TRY(const TensorFile file, read_whole(path));
  const auto value = [&](const std::string& key) {
    const auto it = file.metadata.find(key);
    return it == file.metadata.end() ? std::string() : it->second;
  };
  for (const auto& [key, wanted] : job_of(options)) {
    if (value(key) == wanted) continue;
    return Error{Code::kBadInput,
                 fmt::format("{} was saved with {} \"{}\", this run has \"{}\"",
                             escape_terminal(path), key, escape_terminal(value(key)), wanted),
                 "--weights takes its parameters alone"};
  }
  const auto step = parse_number<int64_t>(value("step"));
  const auto epoch = parse_number<uint32_t>(value("epoch"));
  const auto position = parse_number<uint64_t>(value("position"));
  if (!step || *step < 0 || !epoch || !position) {
    return Error{Code::kBadInput, escape_terminal(path) + " does not say how far it was", ""};
  }
  FLATOUT_TRY_STATUS(fill_tensors(file, path, learner.state()));
  learner.synchronize();
  return Progress{*step, *epoch, *position};
}

Status load_weights(const std::string& path, Learner& learner) {
  FLATOUT_TRY(const TensorFile file, read_whole(path));
  FLATOUT_TRY_STATUS(fill_tensors(file, path, weights_of(learner)));
  learner.synchronize();
  return {};
}

uint32_t digest(Learner& learner) {
  uint32_t hash = 2166136261u;
  for (const Tensor& tensor : weights_of(learner)) {
    hash = hash_bytes(hash, tensor.values.data(), tensor.values.size_bytes());
  }
  return hash;
}

}  // namespace flatout::train

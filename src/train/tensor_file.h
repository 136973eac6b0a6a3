// Named f32 arrays in one file: the safetensors format (github.com/huggingface/safetensors), so
// that checkpoints open in PyTorch and elsewhere. u64 length of the header, little-endian; the
// header, JSON: name to {"dtype", "shape", "data_offsets"}, and "__metadata__"; then the data.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/learner.h"

namespace flatout::train {

struct TensorFile {
  struct Array {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Array> arrays;
};

std::string encode_tensors(const std::map<std::string, std::string>& metadata,
                           const std::vector<Tensor>& tensors);
/// Errors: kBadInput, saying what is wrong.
Result<TensorFile> decode_tensors(std::string_view bytes);
/// Errors: kNotFound, kDenied, kIo, kBadInput, naming the file.
Result<TensorFile> read_tensors(const std::string& path);

/// Copies each array that a tensor has the name of. Errors: kBadInput where one is missing or has
/// another shape; `path` is for the message.
Status fill_tensors(const TensorFile& file, const std::string& path,
                    const std::vector<Tensor>& tensors);

}  // namespace flatout::train

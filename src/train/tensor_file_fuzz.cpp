// Any bytes as a safetensors file: nothing crashes, and what is read survives being written again.
#include <cstdint>
#include <string_view>

#include "train/tensor_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;  // NOLINT
  auto file = train::decode_tensors({reinterpret_cast<const char*>(data), size});
  if (!file.ok()) return 0;
  std::vector<train::Tensor> tensors;
  for (auto& [name, array] : file->arrays) tensors.push_back({name, array.shape, array.values});
  const auto again = train::decode_tensors(train::encode_tensors(file->metadata, tensors));
  FLATOUT_CHECK(again.ok() && again->metadata == file->metadata);
  FLATOUT_CHECK(again->arrays.size() == file->arrays.size());
  return 0;
}

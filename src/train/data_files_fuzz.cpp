// Any bytes as the files of a data set: nothing crashes, and what is read can be sampled.
#include <cstdint>
#include <string_view>

#include "train/data_files.h"
#include "train/images.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;  // NOLINT
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto image = train::decode_image(bytes); image.ok()) {
    const auto side = static_cast<size_t>(image->side);
    FLATOUT_CHECK(image->rgb.size() == side * side * 3);
  }
  const size_t cut = size > 0 ? data[0] * size / 256 : 0;
  auto idx = train::parse_idx(bytes.substr(cut), bytes.substr(0, cut));
  train::Pictures cifar;
  if (train::parse_cifar10(bytes, cifar).ok()) idx = std::move(cifar);
  if (!idx.ok()) return 0;
  const size_t count = idx->labels.size();
  const auto source = train::pictures_source(std::move(*idx));
  for (size_t i = 0; i < count; ++i) FLATOUT_CHECK(source->read(i).ok());
  return 0;
}

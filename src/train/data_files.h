// Data sets in the binary files that MNIST and CIFAR-10 come in, whole in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/source.h"

namespace flatout::train {

/// Square pictures of 1 channel or 3: [count][side][side][channels].
struct Pictures {
  int side = 0;
  int channels = 1;
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;
  int classes() const;  // the largest label + 1
};

/// IDX files, as MNIST's: big-endian magic 0x803 (bytes in three dimensions) with count, rows and
/// columns, and 0x801 with count. Not gzipped. Errors: kBadInput.
Result<Pictures> parse_idx(std::string_view images, std::string_view labels);

/// CIFAR-10's binary version: records of a label and 3 x 32 x 32 bytes, plane after plane. Appends.
/// Errors: kBadInput.
Status parse_cifar10(std::string_view bytes, Pictures& out);

/// The pictures as samples, in their order.
std::unique_ptr<Source> pictures_source(Pictures pictures);

/// What a folder holds.
struct DataFiles {
  Pictures train;
  Pictures test;  // may be empty
};
/// Reads train-images-idx3-ubyte and so on, or data_batch_1.bin and so on, from `folder`.
/// Errors: kNotFound where it holds neither; as above, naming the file.
Result<DataFiles> read_data_files(const std::string& folder);

}  // namespace flatout::train

// Pictures in TFRecord files, as tf.train.Example.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "feed/files.h"
#include "feed/source.h"

namespace flatout::feed {

struct TfRecord {
  uint64_t offset = 0;  // of its data
  uint64_t bytes = 0;   // as many as are there
  bool whole = true;    // with the checksum that follows
};

/// Tells the records of a file in order, from their lengths; data are not read. The verdict is on
/// the file: what follows a damaged length is not told. Errors: kIo.
Result<Verdict> walk_tfrecords(const DataFile& file,
                               const std::function<void(const TfRecord&)>& each);

/// The checksum of a length or of data, as it is stored.
uint32_t masked_crc32c(std::span<const uint8_t> data);

struct Example {
  std::optional<std::string_view> picture;
  std::optional<int64_t> label;
  std::vector<std::string_view> names;  // of all its features
};
/// Of a serialised tf.train.Example: the picture ("image/encoded", "image", "image_raw", "encoded",
/// "jpeg", "jpg" or "png") and its label ("image/class/label", "label", "class" or "cls"). Null
/// where it is none.
std::optional<Example> parse_example(std::string_view bytes);

Result<std::unique_ptr<Source>> open_tfrecords(std::vector<std::string> paths);

}  // namespace flatout::feed

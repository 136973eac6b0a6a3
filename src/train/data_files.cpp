#include "train/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/bytes.h"
#include "base/text.h"
#include "feed/source.h"

namespace flatout::train {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr int kMostSide = 1024;
constexpr size_t kCifarSide = 32;
constexpr size_t kCifarPlane = kCifarSide * kCifarSide;
constexpr size_t kCifarRecord = 1 + 3 * kCifarPlane;

uint32_t big_endian(ByteReader& reader) { return __builtin_bswap32(reader.get<uint32_t>()); }

Error bad(std::string_view what) { return Error{Code::kBadInput, std::string(what), ""}; }

class InMemory : public Source {
 public:
  explicit InMemory(Pictures pictures) : pictures_(std::move(pictures)) {}

  Result<Image> read(size_t index) const override {
    const size_t i = index % pictures_.labels.size();
    const auto channels = static_cast<size_t>(pictures_.channels);
    const size_t size = static_cast<size_t>(pictures_.side) * static_cast<size_t>(pictures_.side);
    const uint8_t* from = pictures_.pixels.data() + i * size * channels;
    Image image;
    image.side = pictures_.side;
    image.label = pictures_.labels[i];
    image.rgb.resize(size * 3);
    for (size_t p = 0; p < size; ++p) {
      for (size_t c = 0; c < 3; ++c) {
        image.rgb[p * 3 + c] = from[p * channels + (channels == 3 ? c : 0)];
      }
    }
    return image;
  }

 private:
  Pictures pictures_;
};

Result<std::string> read_whole(const std::string& path) {
  std::vector<uint8_t> bytes;
  FLATOUT_TRY_STATUS(feed::read_file(path, kMostBytes, bytes));
  return std::string(bytes.begin(), bytes.end());
}

/// The error with the file that it is about.
Error about(Error error, const std::string& path) {
  error.message = escape_terminal(path) + ": " + error.message;
  return error;
}

Result<Pictures> read_idx(const std::string& images, const std::string& labels) {
  FLATOUT_TRY(const std::string image_bytes, read_whole(images));
  FLATOUT_TRY(const std::string label_bytes, read_whole(labels));
  auto pictures = parse_idx(image_bytes, label_bytes);
  if (!pictures.ok()) return about(pictures.error(), images);
  return pictures;
}

}  // namespace

int Pictures::classes() const {
  return labels.empty() ? 0 : *std::max_element(labels.begin(), labels.end()) + 1;
}

Result<Pictures> parse_idx(std::string_view images, std::string_view labels) {
  ByteReader reader(images);
  if (big_endian(reader) != 0x803) return bad("not an IDX file of pictures (gunzip it first?)");
  const uint32_t count = big_endian(reader);
  const uint32_t rows = big_endian(reader);
  const uint32_t columns = big_endian(reader);
  if (!reader.ok() || rows != columns || rows < 1 || rows > kMostSide) {
    return bad("its pictures are not square, or larger than 1024 x 1024");
  }
  if (count < 1 || reader.left() != uint64_t{count} * rows * columns) {
    return bad("its size is not that of the pictures it announces");
  }
  ByteReader label_reader(labels);
  if (big_endian(label_reader) != 0x801) return bad("its labels are not an IDX file of bytes");
  if (big_endian(label_reader) != count || label_reader.left() != count) {
    return bad("it has not as many labels as pictures");
  }
  Pictures out;
  out.side = static_cast<int>(rows);
  const std::string_view pixels = reader.take(reader.left());
  const std::string_view classes = label_reader.take(count);
  out.pixels.assign(pixels.begin(), pixels.end());
  out.labels.assign(classes.begin(), classes.end());
  return out;
}

Status parse_cifar10(std::string_view bytes, Pictures& out) {
  if (bytes.empty() || bytes.size() % kCifarRecord != 0) {
    return bad("its size is no multiple of a record's 3073 bytes");
  }
  out.side = kCifarSide;
  out.channels = 3;
  for (; !bytes.empty(); bytes.remove_prefix(kCifarRecord)) {
    const auto label = static_cast<uint8_t>(bytes[0]);
    if (label > 9) return bad("a label is larger than 9");
    out.labels.push_back(label);
    for (size_t p = 0; p < kCifarPlane; ++p) {
      for (size_t c = 0; c < 3; ++c) {
        out.pixels.push_back(static_cast<uint8_t>(bytes[1 + c * kCifarPlane + p]));
      }
    }
  }
  return {};
}

std::unique_ptr<Source> pictures_source(Pictures pictures) {
  FLATOUT_CHECK(!pictures.labels.empty());
  return std::make_unique<InMemory>(std::move(pictures));
}

Result<DataFiles> read_data_files(const std::string& folder) {
  const auto there = [&](const std::string& name) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(folder + "/" + name, ignored);
  };
  DataFiles out;
  if (there("train-images-idx3-ubyte")) {
    FLATOUT_TRY(out.train,
                read_idx(folder + "/train-images-idx3-ubyte", folder + "/train-labels-idx1-ubyte"));
    if (there("t10k-images-idx3-ubyte")) {
      FLATOUT_TRY(out.test,
                  read_idx(folder + "/t10k-images-idx3-ubyte", folder + "/t10k-labels-idx1-ubyte"));
    }
    return out;
  }
  const auto append = [&](const std::string& name, Pictures& to) -> Status {
    FLATOUT_TRY(const std::string bytes, read_whole(folder + "/" + name));
    const Status status = parse_cifar10(bytes, to);
    return status.ok() ? status : about(status.error(), folder + "/" + name);
  };
  for (int i = 1; there(fmt::format("data_batch_{}.bin", i)); ++i) {
    FLATOUT_TRY_STATUS(append(fmt::format("data_batch_{}.bin", i), out.train));
  }
  for (const auto& [name, what, hint] :
       {std::tuple{"train-images-idx3-ubyte.gz", "packed", "gunzip it and the others first"},
        std::tuple{"data_batch_1", "of CIFAR-10's Python version",
                   "the binary version, data_batch_1.bin and so on, is what is read"}}) {
    if (!out.train.labels.empty() || !there(name)) continue;
    return Error{Code::kBadInput, fmt::format("{}/{} is {}", escape_terminal(folder), name, what),
                 hint};
  }
  if (out.train.labels.empty()) {
    return Error{Code::kNotFound, "no IDX or CIFAR-10 files in " + escape_terminal(folder), ""};
  }
  if (there("test_batch.bin")) FLATOUT_TRY_STATUS(append("test_batch.bin", out.test));
  return out;
}

}  // namespace flatout::train

#include "feed/tfrecord_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "base/protobuf.h"
#include "feed/crc32c.h"
#include "feed/picture.h"

namespace flatout::feed {
namespace {

constexpr std::string_view kPictureKeys[] = {"image/encoded", "image", "image_raw", "encoded",
                                             "jpeg",          "jpg",   "png"};
constexpr std::string_view kLabelKeys[] = {"image/class/label", "label", "class", "cls"};

// Little-endian, as the files are.
template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// How early in a list of names; past its end where it is none of them.
template <size_t n>
size_t rank(const std::string_view (&names)[n], std::string_view name) {
  return static_cast<size_t>(std::find(std::begin(names), std::end(names), name) -
                             std::begin(names));
}

// feature.proto: Feature is one of BytesList = 1, FloatList = 2, Int64List = 3, each a repeated
// value = 1.
bool first_bytes(std::string_view feature, std::optional<std::string_view>& out) {
  ProtoReader kinds(feature);
  while (kinds.next()) {
    if (kinds.number() != 1 || !kinds.is_bytes()) continue;
    ProtoReader list(kinds.bytes());
    while (list.next()) {
      if (list.number() == 1 && list.is_bytes() && !out) out = list.bytes();
    }
    if (!list.ok()) return false;
  }
  return kinds.ok();
}

bool first_integer(std::string_view feature, std::optional<int64_t>& out) {
  ProtoReader kinds(feature);
  while (kinds.next()) {
    if (kinds.number() != 3 || !kinds.is_bytes()) continue;
    ProtoReader list(kinds.bytes());
    while (list.next()) {
      if (list.number() != 1 || out) continue;
      if (!list.is_bytes()) {
        out = list.signed_value();
        continue;
      }
      // Packed: the first varint of a run of them.
      uint64_t value = 0;
      int shift = 0;
      for (const char c : list.bytes()) {
        const auto byte = static_cast<unsigned char>(c);
        value |= static_cast<uint64_t>(byte & 0x7F) << shift;
        shift += 7;
        if (byte < 0x80 || shift > 63) {
          out = static_cast<int64_t>(value);
          break;
        }
      }
    }
    if (!list.ok()) return false;
  }
  return kinds.ok();
}

// The first of them, for people.
std::string names_of_features(const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < names.size() && i < kMost; ++i)
    fmt::format_to(std::back_inserter(out), "{}'{}'", i == 0 ? "" : ", ", names[i].substr(0, 64));
  if (names.size() > kMost) out += " and others";
  return out.empty() ? "nothing" : out;
}

class TfrecordSource : public Source {
 public:
  explicit TfrecordSource(Shards shards) : shards_(std::move(shards)) {}

  Status index() {
    for (size_t shard = 0; shard < shards_.count(); ++shard) {
      FLATOUT_TRY(const DataFile file, shards_.file(shard));
      first_.push_back(rows_.size());
      FLATOUT_TRY(Verdict verdict, walk_tfrecords(file, [&](const TfRecord& record) {
                    // With the checksum behind it.
                    rows_.push_back({record.offset, record.bytes + (record.whole ? 4 : 0),
                                     static_cast<uint32_t>(shard), record.whole});
                  }));
      if (!verdict.ok()) damage_.push_back({shards_.path(shard), std::move(verdict)});
    }
    return {};
  }

  uint64_t count() const override { return rows_.size(); }
  std::string name(uint64_t index) const override {
    const size_t shard = rows_[index].shard;
    return fmt::format("{}, record {}", shards_.path(shard), index - first_[shard]);
  }
  Result<Verdict> read(uint64_t index, Sample& out) const override;
  bool extent(uint64_t index, Extent& out) const override {
    out = {shards_.path(rows_[index].shard), rows_[index].offset, rows_[index].bytes};
    return true;
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<BadSample>& damage() const override { return damage_; }

 private:
  struct Row {
    uint64_t offset;
    uint64_t bytes;
    uint32_t shard;
    bool whole;
  };
  Shards shards_;
  std::vector<Row> rows_;
  std::vector<uint64_t> first_;  // row of each shard
  std::vector<std::string> classes_;
  std::vector<BadSample> damage_;
};

Result<Verdict> TfrecordSource::read(uint64_t index, Sample& out) const {
  const Row& row = rows_[index];
  out.picture = {};
  out.label = 0;
  if (row.bytes > Limits().file_bytes)
    return Verdict{Outcome::kTooLarge, fmt::format("a record of {} bytes", row.bytes)};
  if (!row.whole) return Verdict{Outcome::kTruncated, "the record is cut"};
  FLATOUT_TRY_STATUS(shards_.read(row.shard, row.offset, row.bytes, out.bytes));
  if (out.bytes.size() < row.bytes) return Verdict{Outcome::kTruncated, "the record is cut"};
  const std::span<const uint8_t> data(out.bytes.data(), row.bytes - 4);
  if (masked_crc32c(data) != load<uint32_t>(data.data() + data.size()))
    return Verdict{Outcome::kCorrupt, "the record's checksum is wrong"};
  const auto example = parse_example({reinterpret_cast<const char*>(data.data()), data.size()});
  if (!example) return Verdict{Outcome::kCorrupt, "the record is no tf.train.Example"};
  const auto lacks = [&](std::string_view what) {
    return Verdict{Outcome::kMissingField, fmt::format("the record has no {}; it has {}", what,
                                                       names_of_features(example->names))};
  };
  if (!example->picture) return lacks("picture");
  if (!example->label) return lacks("label that is a number");
  out.picture = {reinterpret_cast<const uint8_t*>(example->picture->data()),
                 example->picture->size()};
  out.label = *example->label;
  return Verdict{};
}

}  // namespace

uint32_t masked_crc32c(std::span<const uint8_t> data) {
  const uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// example.proto: Example has Features = 1, a map<string, Feature> = 1.
std::optional<Example> parse_example(std::string_view bytes) {
  Example out;
  size_t picture_rank = std::size(kPictureKeys);
  size_t label_rank = std::size(kLabelKeys);
  ProtoReader example(bytes);
  while (example.next()) {
    if (example.number() != 1 || !example.is_bytes()) continue;
    ProtoReader features(example.bytes());
    while (features.next()) {
      if (features.number() != 1 || !features.is_bytes()) continue;
      std::string_view key, feature;
      ProtoReader entry(features.bytes());
      while (entry.next()) {
        if (entry.number() == 1) key = entry.bytes();
        if (entry.number() == 2) feature = entry.bytes();
      }
      if (!entry.ok()) return std::nullopt;
      out.names.push_back(key);
      if (const size_t found = rank(kPictureKeys, key); found < picture_rank) {
        std::optional<std::string_view> value;
        if (!first_bytes(feature, value)) return std::nullopt;
        if (value) {
          out.picture = value;
          picture_rank = found;
        }
      }
      if (const size_t found = rank(kLabelKeys, key); found < label_rank) {
        std::optional<int64_t> value;
        if (!first_integer(feature, value)) return std::nullopt;
        if (value) {
          out.label = value;
          label_rank = found;
        }
      }
    }
    if (!features.ok()) return std::nullopt;
  }
  if (!example.ok()) return std::nullopt;
  return out;
}

// tensorflow/core/lib/io/record_writer.h: length (8 bytes), its checksum (4), data, their checksum
// (4).
Result<Verdict> walk_tfrecords(const DataFile& file,
                               const std::function<void(const TfRecord&)>& each) {
  if (file.bytes() == 0) return Verdict{Outcome::kEmpty, "no bytes"};
  for (uint64_t at = 0; at < file.bytes();) {
    std::array<uint8_t, 12> header{};
    FLATOUT_TRY(const size_t got, file.read(at, header));
    const bool wrong = got == header.size() && masked_crc32c(std::span(header).first(8)) !=
                                                   load<uint32_t>(header.data() + 8);
    if (at == 0 && got >= 2 && header[0] == 0x1F && header[1] == 0x8B)
      return Verdict{Outcome::kUnsupported, "a compressed file; unpack it with gunzip"};
    if (at == 0 && wrong && (header[0] & 0x0F) == 8 && (header[0] << 8 | header[1]) % 31 == 0)
      return Verdict{Outcome::kUnsupported,
                     "a compressed file (zlib); write it without compression"};
    if (got < header.size())
      return Verdict{Outcome::kTruncated, fmt::format("a header is cut at byte {}", at)};
    if (wrong)
      return Verdict{Outcome::kCorrupt, fmt::format("a length's checksum is wrong at byte {}", at)};
    TfRecord record;
    record.offset = at + header.size();
    record.bytes = load<uint64_t>(header.data());
    const uint64_t left = file.bytes() - std::min(record.offset, file.bytes());  // it may grow
    if (left < 4 || record.bytes > left - 4) {
      record.bytes = std::min(record.bytes, left);
      record.whole = false;
      each(record);
      return Verdict{Outcome::kTruncated, fmt::format("a record is cut at byte {}", at)};
    }
    each(record);
    at = record.offset + record.bytes + 4;
  }
  return Verdict{};
}

Result<std::unique_ptr<Source>> open_tfrecords(std::vector<std::string> paths) {
  FLATOUT_TRY(Shards shards, Shards::open(std::move(paths)));
  auto source = std::make_unique<TfrecordSource>(std::move(shards));
  FLATOUT_TRY_STATUS(source->index());
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace flatout::feed

#include "feed/pack.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/text.h"
#include "feed/crc32c.h"
#include "feed/files.h"
#include "feed/in_order.h"
#include "feed/picture.h"
#include "feed/seek_index.h"

namespace flatout::feed {
namespace {

struct Header {
  char magic[8];
  uint64_t samples;
  uint64_t table;  // where the rows begin; behind them the names, then the classes as JSON
  uint64_t names;
  uint64_t classes;
  uint64_t end;
  uint32_t crc32;  // from `table` to the end
  uint32_t reserved;
};
struct Row {
  uint64_t offset;
  uint64_t name;  // where it begins in the names
  int64_t label;
  uint32_t bytes;
  uint32_t crc32c;  // of the picture
};
static_assert(sizeof(Header) == 56 && sizeof(Row) == 32);

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Ignore : public RowSink {
 public:
  void restart() override {}
  void rows(const uint8_t*, size_t, int) override {}
};

// A sample on its way into the file.
struct Packed {
  Status status;
  Verdict verdict;
  std::vector<uint8_t> picture;
  int64_t label = 0;
  std::vector<Checkpoint> checkpoints;
};

Packed prepare(const Source& source, uint64_t index, PictureDecoder& decoder) {
  Packed out;
  Sample sample;
  auto read = source.read(index, sample);
  if (!read.ok()) read = unreadable(read.error());
  if (!read.ok()) {
    out.status = read.error();
    return out;
  }
  out.verdict = std::move(*read);
  out.picture.assign(sample.picture.begin(), sample.picture.end());
  out.label = sample.label;
  if (!out.verdict.ok()) return out;
  out.verdict = decoder.open(out.picture);
  if (!out.verdict.ok()) return out;
  // One pixel, and all of the scan that holds it.
  Decoding how;
  how.found = &out.checkpoints;
  Ignore ignore;
  out.verdict = decoder.decode({0, 0, 1, 1}, how, ignore);
  return out;
}

class PackSource : public Source {
 public:
  PackSource(std::string path, DataFile file, const Header& header)
      : path_(std::move(path)), file_(std::move(file)), header_(header) {}

  Result<bool> is_whole() const {
    FLATOUT_TRY(const std::string table, text_at(header_.table, header_.end));
    return crc32(table) == header_.crc32;
  }
  Status set_classes() {
    FLATOUT_TRY(const std::string text, text_at(header_.classes, header_.end));
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_array()) return Error{Code::kBadInput, "its classes are damaged", ""};
    for (const auto& name : json)
      classes_.push_back(name.is_string() ? name.get<std::string>() : std::string());
    return {};
  }

  uint64_t count() const override { return header_.samples; }
  std::string name(uint64_t index) const override {
    const uint64_t all = header_.classes - header_.names;
    const uint64_t begin = std::min(row(index).name, all);
    const uint64_t end = index + 1 < count() ? std::min(row(index + 1).name, all) : all;
    auto text = text_at(header_.names + begin, header_.names + std::max(begin, end));
    return path_ + "/" + (text.ok() ? *text : std::string());
  }
  Result<Verdict> read(uint64_t index, Sample& out) const override {
    const Row place = row(index);
    out.picture = {};
    out.label = place.label;
    out.bytes.resize(std::min<uint64_t>(place.bytes, Limits().file_bytes + 1));
    FLATOUT_TRY(const size_t got, file_.read(place.offset, out.bytes));
    out.bytes.resize(got);
    out.picture = out.bytes;
    if (place.offset == 0 || got < place.bytes)
      return Verdict{Outcome::kTruncated, "the file ends before the sample does"};
    if (crc32c(out.picture) != place.crc32c)
      return Verdict{Outcome::kCorrupt, "the sample's checksum is wrong"};
    return Verdict{};
  }
  bool extent(uint64_t index, Extent& out) const override {
    const Row place = row(index);
    out = {path_, place.offset, place.bytes};
    return true;
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<BadSample>& damage() const override { return damage_; }
  std::string seek_index() const override { return path_ + ".seek"; }

 private:
  // All zero where the file was cut since it was opened.
  Row row(uint64_t index) const {
    std::array<uint8_t, sizeof(Row)> bytes{};
    (void)file_.read(header_.table + index * sizeof(Row), bytes);
    Row out;
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
  }
  Result<std::string> text_at(uint64_t begin, uint64_t end) const {
    std::vector<uint8_t> bytes(end - begin);
    FLATOUT_TRY(const size_t got, file_.read(begin, bytes));
    return std::string(text_of(std::span(bytes).first(got)));
  }
  std::string path_;
  DataFile file_;  // read, not mapped: where it is cut meanwhile, no signal ends the program
  Header header_;
  std::vector<std::string> classes_;
  std::vector<BadSample> damage_;
};

}  // namespace

Result<PackResult> pack(const Source& source, const std::string& path, int threads,
                        const std::function<void(const BadSample&)>& bad) {
  for (const BadSample& each : source.damage()) bad(each);
  FLATOUT_TRY(const auto file, FileWriter::create(path));
  FLATOUT_TRY(const auto seek, SeekIndex::Writer::create(path + ".seek"));
  FLATOUT_TRY_STATUS(file->append(std::string(sizeof(Header), '\0')));
  std::string table, names;
  PackResult result;
  const size_t workers = workers_for(threads);
  std::vector<std::unique_ptr<PictureDecoder>> decoders;
  for (size_t i = 0; i < workers; ++i) decoders.push_back(std::make_unique<PictureDecoder>());
  const Status packed_all = in_order(
      source.count(), workers,
      [&](uint64_t i, size_t worker) { return prepare(source, i, *decoders[worker]); },
      [&](Packed&& packed) -> Status {
        FLATOUT_TRY_STATUS(packed.status);
        const std::string name = source.name(result.samples);
        const std::string_view bytes = text_of(packed.picture);
        if (!packed.verdict.ok()) bad({name, std::move(packed.verdict)});
        put(table, Row{file->written(), names.size(), packed.label,
                       static_cast<uint32_t>(bytes.size()), crc32c(packed.picture)});
        names += name;
        FLATOUT_TRY_STATUS(file->append(bytes));
        ++result.samples;
        result.indexed += packed.checkpoints.empty() ? 0 : 1;
        return seek->append(fingerprint(packed.picture), packed.checkpoints);
      });
  if (!packed_all.ok()) return packed_all.error();
  nlohmann::json classes = nlohmann::json::array();
  for (const std::string& name : source.classes()) classes.push_back(to_utf8(name));
  Header header{};
  std::memcpy(header.magic, kPackMagic.data(), sizeof header.magic);
  header.samples = result.samples;
  header.table = file->written();
  header.names = header.table + table.size();
  header.classes = header.names + names.size();
  table += names + classes.dump();
  header.end = header.table + table.size();
  header.crc32 = crc32(table);
  FLATOUT_TRY_STATUS(file->append(table));
  result.bytes = file->written();
  // The index first: a file has its index as soon as it is there.
  FLATOUT_TRY_STATUS(seek->finish());
  FLATOUT_TRY_STATUS(file->finish({reinterpret_cast<const char*>(&header), sizeof header}));
  return result;
}

Result<std::unique_ptr<Source>> open_pack(const std::string& path) {
  const auto bad = [&](std::string_view what) {
    return Error{Code::kBadInput, fmt::format("{} {}", escape_terminal(path), what),
                 "pack it again: flatout feed pack"};
  };
  FLATOUT_TRY(DataFile file, DataFile::open(path));
  Header header{};
  std::array<uint8_t, sizeof header> start{};
  FLATOUT_TRY(const size_t got, file.read(0, start));
  if (got < sizeof header || !text_of(start).starts_with(kPackMagic))
    return bad("is no file of flatout feed pack");
  std::memcpy(&header, start.data(), sizeof header);
  if (header.end != file.bytes() || header.table > header.names || header.names > header.classes ||
      header.classes > header.end || (header.names - header.table) % sizeof(Row) != 0 ||
      (header.names - header.table) / sizeof(Row) != header.samples)
    return bad("is damaged or cut: its table cannot be read");
  auto source = std::make_unique<PackSource>(path, std::move(file), header);
  FLATOUT_TRY(const bool whole, source->is_whole());
  if (!whole) return bad("is damaged or cut: its table cannot be read");
  if (!source->set_classes().ok()) return bad("is damaged: its classes cannot be read");
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace flatout::feed

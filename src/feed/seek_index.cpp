#include "feed/seek_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"

namespace flatout::feed {
namespace {

constexpr std::string_view kMagic = "FLTSEEK1";

// Entries follow, then for each sample where its entry begins (0: it has none).
struct Header {
  char magic[8];
  uint64_t samples;
  uint64_t table;  // where it begins
  uint32_t table_crc32;
  uint32_t spacing;  // kCheckpointMcus
};

static_assert(sizeof(Checkpoint) == 12 && alignof(Checkpoint) == 4);

}  // namespace

uint32_t fingerprint(std::span<const uint8_t> data) {
  constexpr size_t kPieces = 16, kPiece = 64;
  std::string sample;
  put(sample, uint64_t{data.size()});
  for (size_t i = 0; i < kPieces; ++i) {
    const auto piece = data.subspan(data.size() / kPieces * i);
    sample.append(reinterpret_cast<const char*>(piece.data()), std::min(piece.size(), kPiece));
  }
  return crc32(sample);
}

SeekIndex::SeekIndex(uint64_t samples, uint64_t most_bytes)
    : entries_(std::make_unique<std::atomic<const Entry*>[]>(samples)),
      samples_(samples),
      most_bytes_(most_bytes) {}

SeekIndex::~SeekIndex() = default;

bool SeekIndex::entry_in_file(uint64_t sample, Entry& out) const {
  if (places_.empty() || places_[sample] == 0) return false;
  std::array<uint8_t, sizeof out> bytes{};
  const auto got = file_->read(places_[sample], bytes);
  std::memcpy(&out, bytes.data(), sizeof out);
  return got.ok() && *got == sizeof out;
}

std::vector<Checkpoint> SeekIndex::checkpoints_in_file(uint64_t sample, const Entry& entry) const {
  const uint64_t at = places_[sample] + sizeof entry;
  if ((end_ - at) / sizeof(Checkpoint) < entry.checkpoints) return {};
  std::vector<Checkpoint> out(entry.checkpoints);
  const std::span bytes(reinterpret_cast<uint8_t*>(out.data()), out.size() * sizeof(Checkpoint));
  const auto got = file_->read(at, bytes);
  if (!got.ok() || *got < bytes.size()) out.clear();
  return out;
}

SeekIndex::Found SeekIndex::find(uint64_t sample, uint32_t fingerprint) const {
  const Entry* entry = entries_[sample].load(std::memory_order_acquire);
  if (entry != nullptr && entry->fingerprint == fingerprint)
    return {{reinterpret_cast<const Checkpoint*>(entry + 1), entry->checkpoints}, false, {}};
  Entry known{};
  if (entry == nullptr && entry_in_file(sample, known) && known.fingerprint == fingerprint) {
    Found found;
    found.read = checkpoints_in_file(sample, known);
    found.checkpoints = found.read;
    return found;
  }
  return {{}, bytes_.load(std::memory_order_relaxed) < most_bytes_, {}};
}

void SeekIndex::put(uint64_t sample, uint32_t fingerprint,
                    std::span<const Checkpoint> checkpoints) {
  std::string bytes;
  bytes.reserve(sizeof(Entry) + checkpoints.size_bytes());
  flatout::put(bytes, Entry{fingerprint, static_cast<uint32_t>(checkpoints.size())});
  bytes.append(reinterpret_cast<const char*>(checkpoints.data()), checkpoints.size_bytes());
  bytes_ += bytes.size();
  changed_ = true;
  const std::lock_guard lock(mutex_);
  owned_.push_back(std::move(bytes));
  entries_[sample].store(reinterpret_cast<const Entry*>(owned_.back().data()),
                         std::memory_order_release);
}

Result<std::unique_ptr<SeekIndex::Writer>> SeekIndex::Writer::create(const std::string& path) {
  auto writer = std::make_unique<Writer>();
  FLATOUT_TRY(writer->file_, FileWriter::create(path));
  FLATOUT_TRY_STATUS(writer->file_->append(std::string(sizeof(Header), '\0')));
  return writer;
}

Status SeekIndex::Writer::append(std::optional<uint32_t> fingerprint,
                                 std::span<const Checkpoint> checkpoints) {
  flatout::put(table_, fingerprint ? file_->written() : uint64_t{0});
  if (!fingerprint) return {};
  std::string entry;
  flatout::put(entry, Entry{*fingerprint, static_cast<uint32_t>(checkpoints.size())});
  FLATOUT_TRY_STATUS(file_->append(entry));
  return file_->append(
      {reinterpret_cast<const char*>(checkpoints.data()), checkpoints.size_bytes()});
}

Status SeekIndex::Writer::finish() {
  Header header{{}, table_.size() / 8, file_->written(), crc32(table_), kCheckpointMcus};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  FLATOUT_TRY_STATUS(file_->append(table_));
  return file_->finish({reinterpret_cast<const char*>(&header), sizeof header});
}

Status SeekIndex::save(const std::string& path) const {
  FLATOUT_TRY(const auto writer, Writer::create(path));
  for (uint64_t i = 0; i < samples_; ++i) {
    const Entry* entry = entries_[i].load(std::memory_order_acquire);
    Entry known{};
    if (entry != nullptr) {
      FLATOUT_TRY_STATUS(
          writer->append(entry->fingerprint,
                         {reinterpret_cast<const Checkpoint*>(entry + 1), entry->checkpoints}));
    } else if (entry_in_file(i, known)) {
      FLATOUT_TRY_STATUS(writer->append(known.fingerprint, checkpoints_in_file(i, known)));
    } else {
      FLATOUT_TRY_STATUS(writer->append(std::nullopt, {}));
    }
  }
  return writer->finish();
}

Result<std::unique_ptr<SeekIndex>> SeekIndex::load(const std::string& path, uint64_t samples,
                                                   uint64_t most_bytes) {
  auto index = std::make_unique<SeekIndex>(samples, most_bytes);
  FLATOUT_TRY(DataFile file, DataFile::open(path));
  const auto bad = [&](std::string_view what) {
    return Error{Code::kBadInput, fmt::format("{} {}", escape_terminal(path), what),
                 "remove it; it is made anew"};
  };
  Header header{};
  std::array<uint8_t, sizeof header> start{};
  FLATOUT_TRY(const size_t got, file.read(0, start));
  std::memcpy(&header, start.data(), sizeof header);
  if (got < sizeof header || std::string_view(header.magic, kMagic.size()) != kMagic)
    return bad("is no seek index");
  if (header.samples != samples || header.spacing != kCheckpointMcus)
    return bad(fmt::format("is of a data set of {} samples, not {}", header.samples, samples));
  if (header.table < sizeof header || header.table > file.bytes() || header.table % 4 != 0 ||
      (file.bytes() - header.table) / 8 != samples)
    return bad("is damaged");
  std::vector<uint8_t> table(file.bytes() - header.table);
  FLATOUT_TRY(const size_t there, file.read(header.table, table));
  if (there < table.size() ||
      crc32({reinterpret_cast<const char*>(table.data()), table.size()}) != header.table_crc32)
    return bad("is damaged");
  index->places_.resize(samples);
  std::memcpy(index->places_.data(), table.data(), samples * 8);
  for (const uint64_t at : index->places_) {
    if (at != 0 && (at < sizeof header || at > header.table || header.table - at < sizeof(Entry)))
      return bad("is damaged");
  }
  index->end_ = header.table;
  index->file_.emplace(std::move(file));
  return index;
}

}  // namespace flatout::feed

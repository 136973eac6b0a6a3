#include "feed/seek_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

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

std::span<const Checkpoint> SeekIndex::checkpoints_at(const Entry* entry) const {
  if (file_ != nullptr) {
    const std::string_view bytes = file_->bytes();
    const auto* first = reinterpret_cast<const char*>(entry + 1);
    const std::less_equal<const char*> before;
    const bool inside = before(bytes.data(), first) && before(first, bytes.data() + bytes.size());
    if (inside && static_cast<size_t>(bytes.data() + bytes.size() - first) / sizeof(Checkpoint) <
                      entry->checkpoints)
      return {};
  }
  return {reinterpret_cast<const Checkpoint*>(entry + 1), entry->checkpoints};
}

SeekIndex::Found SeekIndex::find(uint64_t sample, uint32_t fingerprint) const {
  const Entry* entry = entries_[sample].load(std::memory_order_acquire);
  if (entry == nullptr || entry->fingerprint != fingerprint)
    return {{}, bytes_.load(std::memory_order_relaxed) < most_bytes_};
  return {checkpoints_at(entry), false};
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
    FLATOUT_TRY_STATUS(entry == nullptr
                           ? writer->append(std::nullopt, {})
                           : writer->append(entry->fingerprint, checkpoints_at(entry)));
  }
  return writer->finish();
}

Result<std::unique_ptr<SeekIndex>> SeekIndex::load(const std::string& path, uint64_t samples,
                                                   uint64_t most_bytes) {
  auto index = std::make_unique<SeekIndex>(samples, most_bytes);
  FLATOUT_TRY(index->file_, MappedFile::open(path));
  const auto bad = [&](std::string_view what) {
    return Error{Code::kBadInput, fmt::format("{} {}", escape_terminal(path), what),
                 "remove it; it is made anew"};
  };
  const std::string_view bytes = index->file_->bytes();
  Header header{};
  if (bytes.size() < sizeof header || !bytes.starts_with(kMagic)) return bad("is no seek index");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.samples != samples || header.spacing != kCheckpointMcus)
    return bad(fmt::format("is of a data set of {} samples, not {}", header.samples, samples));
  if (header.table < sizeof header || header.table > bytes.size() || header.table % 4 != 0 ||
      (bytes.size() - header.table) / 8 != samples ||
      crc32(bytes.substr(header.table)) != header.table_crc32)
    return bad("is damaged");
  for (uint64_t i = 0; i < samples; ++i) {
    uint64_t at = 0;
    std::memcpy(&at, bytes.data() + header.table + i * 8, sizeof at);
    if (at == 0) continue;
    if (at < sizeof header || at % 4 != 0 || at > header.table || header.table - at < sizeof(Entry))
      return bad("is damaged");
    index->entries_[i].store(reinterpret_cast<const Entry*>(bytes.data() + at),
                             std::memory_order_relaxed);
  }
  return index;
}

}  // namespace flatout::feed

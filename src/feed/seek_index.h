// The entropy seek index of a data set: for each sequential JPEG where every few MCUs of a row
// begin in its scan, so that a part of it is decoded without what comes before. A fortieth of the
// data's size.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "feed/files.h"
#include "feed/huffman.h"

namespace flatout::feed {

/// MCUs from one checkpoint of a row to the next; each row begins with one.
constexpr uint32_t kCheckpointMcus = 4;
constexpr uint32_t checkpoints_of_row(uint32_t mcus) {
  return (mcus + kCheckpointMcus - 1) / kCheckpointMcus;
}

/// Tells whether a sample is the one that was indexed, from its size and a thousand of its bytes.
uint32_t fingerprint(std::span<const uint8_t> data);

/// Thread-safe.
class SeekIndex {
 public:
  /// Empty, for so many samples; takes in no more than `most_bytes`.
  SeekIndex(uint64_t samples, uint64_t most_bytes);
  ~SeekIndex();
  SeekIndex(const SeekIndex&) = delete;
  SeekIndex& operator=(const SeekIndex&) = delete;

  /// Opens what save() wrote, without reading it in. Errors: kNotFound; kBadInput where it is no
  /// index, is damaged or belongs to another number of samples.
  static Result<std::unique_ptr<SeekIndex>> load(const std::string& path, uint64_t samples,
                                                 uint64_t most_bytes);
  /// Whole or not at all.
  Status save(const std::string& path) const;

  struct Found {
    std::span<const Checkpoint> checkpoints;
    bool wanted = false;           // nothing is known about this sample, and there is room for it
    std::vector<Checkpoint> read;  // what the span is of where it was in the file
  };
  Found find(uint64_t sample, uint32_t fingerprint) const;
  /// No checkpoints: this sample cannot have any.
  void put(uint64_t sample, uint32_t fingerprint, std::span<const Checkpoint> checkpoints);
  /// Samples were added since it was made or loaded, or since this was asked last.
  bool take_changed() { return changed_.exchange(false); }

  /// Writes one without holding it, sample by sample.
  class Writer {
   public:
    static Result<std::unique_ptr<Writer>> create(const std::string& path);
    /// The next sample's; nothing is known of a sample without a fingerprint.
    Status append(std::optional<uint32_t> fingerprint, std::span<const Checkpoint> checkpoints);
    Status finish();

   private:
    std::unique_ptr<FileWriter> file_;
    std::string table_;
  };

 private:
  struct Entry {
    uint32_t fingerprint;
    uint32_t checkpoints;
  };
  /// The entry that the file has of a sample; false where it has none, or has been cut since.
  bool entry_in_file(uint64_t sample, Entry& out) const;
  /// None where they would go on behind the entries' end.
  std::vector<Checkpoint> checkpoints_in_file(uint64_t sample, const Entry& entry) const;

  std::unique_ptr<std::atomic<const Entry*>[]> entries_;
  uint64_t samples_;
  uint64_t most_bytes_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> changed_{false};
  // Read, not mapped: where it is cut meanwhile, no signal ends the program.
  std::optional<DataFile> file_;
  std::vector<uint64_t> places_;  // of entries in it; 0: there is none
  uint64_t end_ = 0;              // of its entries
  std::mutex mutex_;
  std::deque<std::string> owned_;  // what the entries point to: those that are not the file's
};

}  // namespace flatout::feed

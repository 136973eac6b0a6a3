// An append-only file of blocks with checksums (wire/messages.h): what a killed run leaves behind
// can be read up to the last block.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace flatout::recorder {

class BlockFile {
 public:
  BlockFile() = default;  // closed: takes everything and keeps nothing
  /// Creates or empties `path`, and locks it, which tells a live run from an ended one.
  static Result<BlockFile> create(const std::string& path);
  BlockFile(BlockFile&& other) noexcept;
  BlockFile& operator=(BlockFile&& other) noexcept;
  ~BlockFile();

  /// Adds whole packets. They reach the file with the next flush.
  void append(std::string_view packets);
  /// Writes what there is as one block. After an error the file is closed at the last good block
  /// and everything later is dropped: the error is returned once.
  Status flush(TimePoint now);
  /// True when enough has come together, or a second has passed since the last block.
  bool flush_due(TimePoint now) const;
  uint64_t bytes() const { return bytes_ + buffer_.size(); }
  bool is_open() const { return fd_ >= 0; }

 private:
  explicit BlockFile(int fd) : fd_(fd) {}
  Status write_block();
  void close_file();

  int fd_ = -1;
  uint64_t bytes_ = 0;   // in the file
  std::string buffer_;   // room for the block's header, then packets
  TimePoint flushed_{};  // last time that a block was written
};

}  // namespace flatout::recorder

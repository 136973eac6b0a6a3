// Files as the readers and writers of data sets need them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::feed {

/// A file that any thread reads anywhere.
class DataFile {
 public:
  /// Errors: kNotFound, kDenied, kIo (also where it is no regular file), kFull where the process
  /// may have no more files or memory.
  static Result<DataFile> open(const std::string& path);
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&&) = delete;
  ~DataFile();

  uint64_t bytes() const { return bytes_; }
  /// Fills `out` from `offset` on and says how much of it: less where the file ends.
  Result<size_t> read(uint64_t offset, std::span<uint8_t> out) const;
  /// Lets the kernel begin to read `bytes` from `offset` on into the page cache.
  void will_need(uint64_t offset, uint64_t bytes) const;

 private:
  friend class MappedFile;
  DataFile(int fd, uint64_t bytes, std::string path);
  int fd_;
  uint64_t bytes_;
  std::string path_;  // for messages
};

/// Several files that hold samples. A few are kept open; of more, each read opens its own.
class Shards {
 public:
  static Result<Shards> open(std::vector<std::string> paths);

  size_t count() const { return paths_.size(); }
  const std::string& path(size_t shard) const { return paths_[shard]; }
  /// `bytes` from `offset` on, or what there is of them.
  Status read(size_t shard, uint64_t offset, uint64_t bytes, std::vector<uint8_t>& out) const;
  Result<DataFile> file(size_t shard) const { return DataFile::open(paths_[shard]); }

 private:
  std::vector<std::string> paths_;
  std::vector<DataFile> kept_;  // all of them, or none
};

/// A whole file in memory that the page cache lends: of a large one only what is looked at.
class MappedFile {
 public:
  /// Errors: as DataFile's. An empty file has no bytes.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::string_view bytes) : bytes_(bytes) {}
  std::string_view bytes_;
};

/// A file that is written from its beginning to its end and gets its name when it is whole; if it
/// is dropped before, or the process dies, nothing is there under that name but what was before.
class FileWriter {
 public:
  static Result<std::unique_ptr<FileWriter>> create(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  uint64_t written() const { return written_; }
  Status append(std::string_view bytes);
  /// Writes `start` over the first bytes and gives the file its name.
  Status finish(std::string_view start);

 private:
  FileWriter(int fd, std::string path, std::string temporary);
  Status flush();
  int fd_;
  std::string path_, temporary_;
  std::string buffer_;
  uint64_t written_ = 0;
};

}  // namespace flatout::feed

// Reading another process's memory without stopping it, in as few system calls as can be.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::probe {

struct RemoteRange {
  uint64_t address = 0;
  uint32_t size = 0;
};

/// Why another process cannot be looked into, of an errno, and the way out.
Error read_error(int err, int32_t pid);

/// Another process's memory. Tests and fuzzers have one of their own.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  /// Reads the ranges one after the other into `to` and returns the number of bytes read: fewer
  /// than asked for where a range is not (wholly) there; what follows it is then not read.
  /// Errors: kDenied, kGone, kIo.
  virtual Result<size_t> read(std::span<const RemoteRange> ranges, char* to) = 0;
};

/// process_vm_readv of `pid`.
class ProcessMemory : public RemoteMemory {
 public:
  explicit ProcessMemory(int32_t pid) : pid_(pid) {}
  Result<size_t> read(std::span<const RemoteRange> ranges, char* to) override;

 private:
  int32_t pid_;
};

/// Memory as it was in one reading. Remembers which ranges the last reading used and fetches all of
/// them at once at the start of the next: a stack that did not change costs one system call.
class RemoteSnapshot {
 public:
  explicit RemoteSnapshot(RemoteMemory& memory) : memory_(memory) {}

  /// Starts a new reading: all that was read before is forgotten. Errors: kDenied, kGone.
  Status begin();
  /// Copies [address, address + size) to `to`. False where it can't be read.
  bool copy(uint64_t address, void* to, size_t size);
  template <class T>
  bool get(uint64_t address, T& value) {
    return copy(address, &value, sizeof value);
  }
  /// Makes [address, address + size) part of this reading in one piece, so that later copies from
  /// within cost nothing. False where it can't be read.
  bool fetch(uint64_t address, size_t size);
  /// Like copy(), but neither remembered nor kept: for what is read once.
  bool copy_once(uint64_t address, void* to, size_t size);

  /// Why this reading could read nothing at all (kDenied, kGone); ok() where single ranges failed.
  const Status& trouble() const { return trouble_; }
  uint64_t calls() const { return calls_; }  // system calls so far
  size_t planned() const { return pieces_.size(); }

 private:
  struct Piece {
    uint64_t address = 0;
    uint32_t size = 0;
    uint32_t offset = 0;  // in data_
    bool used = false;
  };
  Piece* find(uint64_t address, size_t size);
  Piece* load(uint64_t address, size_t size);

  RemoteMemory& memory_;
  std::vector<Piece> pieces_;  // sorted by address; ranges of the last reading
  std::vector<Piece> added_;   // found missing in this reading
  std::vector<RemoteRange> ranges_;
  std::string data_;
  size_t budget_ = 0;  // bytes that this reading may still add
  uint64_t calls_ = 0;
  Status trouble_;
};

}  // namespace flatout::probe

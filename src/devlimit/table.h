// What this process holds, by address or handle. Open addressing in memory from mmap: the
// interposer must not call malloc, which may be anyone's, and a lookup is on every free.
#pragma once

#include <cstdint>

namespace flatout::devlimit {

enum class Kind : uint32_t {
  kNone,
  kGone,      // a tombstone
  kMemory,    // by address: plain, pitched, managed, imported; object: its context (home_of)
  kPooled,    // by address; object: the Pool
  kArray,     // by handle: arrays and mipmaps; object: its context
  kExternal,  // by handle; object: its context
  kPhysical,  // by handle; object: the Physical
  kMapping,   // by address; object: the Physical
  kGuessed,   // by handle: a context, a module; bytes: charged for it
  kGreen,     // by handle: a green context
  kGraph,     // an executable graph; bytes: what its nodes allocate
};

struct Entry {
  uint64_t key = 0;
  Kind kind = Kind::kNone;
  int device = -1;  // row of the ledger
  uint64_t bytes = 0;
  void* object = nullptr;
  uint64_t round = 0;  // of kGraph: the trim after which it was last launched
  uint64_t again = 0;  // of memory of other processes: how often it is open beyond once
};

/// Memory that comes and goes here is recorded (record.h). Not thread-safe: callers hold Books'
/// lock.
class Table {
 public:
  /// False: no memory.
  bool put(const Entry& entry);
  Entry* find(Kind kind, uint64_t key);
  /// The entry, now gone; kind kNone if there was none.
  Entry take(Kind kind, uint64_t key);
  /// The mapping that starts at `begin`, else any that starts in [begin, end), else nullptr. Only
  /// the first is quick.
  Entry* mapping_within(uint64_t begin, uint64_t end);
  /// Forgets plain memory, arrays and imports of that context (home_of) on the device of that row;
  /// how many bytes it was.
  uint64_t forget_memory_of(const void* context, int device);
  /// The one that `address` lies in; not quick.
  Entry* mapping_around(uint64_t address);

 private:
  bool grow();
  bool insert(const Entry& entry);
  Entry* slot_of(Kind kind, uint64_t key);

  Entry* entries_ = nullptr;
  uint64_t capacity_ = 0, filled_ = 0;  // filled: tombstones too
  uint64_t live_ = 0;
};

}  // namespace flatout::devlimit

// Where a policy's chunks live: their addresses stay, and a dropped one is used again. And which of
// them are handed out.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <vector>

#include "devmem/policy.h"

namespace flatout::devmem {

/// `Chunk` has a pointer `next` to another, which is the store's once the chunk was dropped.
template <class Chunk>
class ChunkStore {
 public:
  /// A fresh one, as it is by default.
  Chunk* make() {
    if (spare_ == nullptr) return &chunks_.emplace_back();
    Chunk* chunk = spare_;
    spare_ = chunk->next;
    *chunk = {};
    return chunk;
  }
  void drop(Chunk* chunk) {
    *chunk = {};
    chunk->next = spare_;
    spare_ = chunk;
  }
  /// All that were ever made, dropped ones too.
  const std::deque<Chunk>& all() const { return chunks_; }

 private:
  std::deque<Chunk> chunks_;
  Chunk* spare_ = nullptr;
};

/// The chunks that are handed out, by address, and their sums. `Chunk` has `address`, `size` and
/// `requested`. A table with open addressing: a request costs no allocation of its own.
template <class Chunk>
class LiveChunks {
 public:
  /// The chunk's address, which is the answer to a request of so many bytes.
  Address add(Chunk* chunk, Bytes requested) {
    chunk->requested = requested;
    live_ += requested;
    allocated_ += chunk->size;
    if (++count_ * 4 > slots_.size() * 3) widen();
    size_t at = home(chunk->address);
    while (slots_[at]) at = next(at);
    slots_[at] = chunk;
    return chunk->address;
  }
  /// The chunk at that address, handed out no longer. Errors: kBadInput if there is none.
  Result<Chunk*> remove(Address address) {
    const size_t found = find(address);
    if (found == kNone)
      return Error{Code::kBadInput, fmt::format("{:#x} is no live chunk", address), ""};
    Chunk* const chunk = slots_[found];
    // What follows in the row moves up, unless it would pass its home.
    size_t hole = found;
    for (size_t at = next(hole); slots_[at]; at = next(at)) {
      const size_t away = (at - home(slots_[at]->address)) & (slots_.size() - 1);
      if (away < ((at - hole) & (slots_.size() - 1))) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = nullptr;
    --count_;
    live_ -= chunk->requested;
    allocated_ -= chunk->size;
    return chunk;
  }
  bool holds(const Chunk* chunk) const {
    const size_t at = find(chunk->address);
    return at != kNone && slots_[at] == chunk;
  }
  Bytes allocated() const { return allocated_; }
  /// What a policy says of itself, but for its largest hole.
  PolicyStats stats(Bytes reserved) const { return {live_, allocated_, reserved, count_, 0}; }

 private:
  static constexpr size_t kNone = ~size_t{0};

  size_t home(Address address) const { return (address / 256 * 0x9e3779b97f4a7c15) >> shift_; }
  size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }
  size_t find(Address address) const {
    for (size_t at = home(address); slots_[at]; at = next(at))
      if (slots_[at]->address == address) return at;
    return kNone;
  }
  void widen() {
    std::vector<Chunk*> old(slots_.size() * 2);
    old.swap(slots_);
    --shift_;
    for (Chunk* chunk : old) {
      if (!chunk) continue;
      size_t at = home(chunk->address);
      while (slots_[at]) at = next(at);
      slots_[at] = chunk;
    }
  }

  int shift_ = 64 - 6;
  std::vector<Chunk*> slots_ = std::vector<Chunk*>(64);
  size_t count_ = 0;
  Bytes live_ = 0, allocated_ = 0;
};

}  // namespace flatout::devmem

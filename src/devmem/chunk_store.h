// Where a policy's chunks live: their addresses stay, and a dropped one is used again. And which of
// them are handed out.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <unordered_map>

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
/// `requested`.
template <class Chunk>
class LiveChunks {
 public:
  /// The chunk's address, which is the answer to a request of so many bytes.
  Address add(Chunk* chunk, Bytes requested) {
    chunk->requested = requested;
    live_ += requested;
    allocated_ += chunk->size;
    by_address_.emplace(chunk->address, chunk);
    return chunk->address;
  }
  /// The chunk at that address, handed out no longer. Errors: kBadInput if there is none.
  Result<Chunk*> remove(Address address) {
    const auto it = by_address_.find(address);
    if (it == by_address_.end()) {
      return Error{Code::kBadInput, fmt::format("{:#x} is no live chunk", address), ""};
    }
    Chunk* const chunk = it->second;
    by_address_.erase(it);
    live_ -= chunk->requested;
    allocated_ -= chunk->size;
    return chunk;
  }
  bool holds(const Chunk* chunk) const {
    const auto it = by_address_.find(chunk->address);
    return it != by_address_.end() && it->second == chunk;
  }
  Bytes allocated() const { return allocated_; }
  /// What a policy says of itself, but for its largest hole.
  PolicyStats stats(Bytes reserved) const {
    return {live_, allocated_, reserved, by_address_.size(), 0};
  }

 private:
  std::unordered_map<Address, Chunk*> by_address_;
  Bytes live_ = 0, allocated_ = 0;
};

}  // namespace flatout::devmem

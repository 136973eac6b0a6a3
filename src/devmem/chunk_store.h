// Where a policy's chunks live: their addresses stay, and a dropped one is used again.
#pragma once

#include <deque>

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

}  // namespace flatout::devmem

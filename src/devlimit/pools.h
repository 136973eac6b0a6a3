// Stream-ordered memory: which pool a block came from, and what the pool has reserved.
#pragma once

#include "devlimit/books.h"
#include "devlimit/real.h"

namespace flatout::devlimit {

/// Takes the block at `address` from its pool's books, and its bytes; null pool: it is of no pool.
struct Pooled {
  Pool* pool = nullptr;
  Entry entry;
};
Pooled forget_pooled(CUdeviceptr address);
/// After the driver took the block back, or refused to.
void end_free(const Pooled& block, bool freed);
/// Under Locked: a block of so many bytes is gone.
void drop_block(Pool& pool, uint64_t bytes);

/// Frees by `call` if the block is of a pool; its result is stored then. False: not of a pool.
template <class Call>
bool free_pooled(CUdeviceptr address, Call call, CUresult& result) {
  const Pooled block = forget_pooled(address);
  if (block.pool == nullptr) return false;
  result = call();
  end_free(block, result == CUDA_SUCCESS);
  return true;
}

/// Has pools and graphs of that row give idle memory back.
void trim_pools(int row);
void trim_graphs(int row);

}  // namespace flatout::devlimit

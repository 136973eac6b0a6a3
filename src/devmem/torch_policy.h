// PyTorch's caching allocator, decision by decision as c10::cuda::CUDACachingAllocator of
// PyTorch 2.13 takes them: native, or with expandable segments. golden_test.cpp holds every
// offset to the original. Not modelled: private pools (CUDA graphs, MemPool), uses of a chunk on
// streams other than its own.
//
// Requests up to 1 MiB come from the small pool, others from the large one; chunks never cross
// streams. Native takes regions of 2 MiB (small), 20 MiB (1 to 10 MiB) or the size in multiples of
// 2 MiB. Expandable maps 2 or 20 MiB at a time into one range of addresses for each stream and
// pool.
#pragma once

#include <limits>
#include <map>
#include <set>

#include "devmem/chunk_store.h"
#include "devmem/policy.h"

namespace flatout::devmem {

struct TorchOptions {
  bool expandable = false;
  Bytes max_split_size = std::numeric_limits<Bytes>::max();
  uint64_t roundup_power2_divisions = 0;  // 0: multiples of 512
  double garbage_collection_threshold = 0;
  bool limited = false;  // set_per_process_memory_fraction was called; the limit is its share
};

class TorchPolicy : public Policy {
 public:
  TorchPolicy(Driver& driver, Bytes limit, TorchOptions options);
  ~TorchPolicy() override;

  Result<Address> allocate(Bytes size, Stream stream) override;
  Status free(Address address) override;
  void trim() override;
  PolicyStats stats() const override;
  void check() const override;

  /// What a request of `size` is rounded to.
  Bytes rounded(Bytes size) const;

 private:
  struct Pool;
  struct Range;
  struct Chunk {
    Stream stream = 0;
    Bytes size = 0, requested = 0;
    Address address = 0;
    Pool* pool = nullptr;
    Range* range = nullptr;  // of an expandable chunk
    bool in_use = false, mapped = true;
    Chunk *prev = nullptr, *next = nullptr;
    int64_t born = 0;  // the pool's count of searches when it became free

    bool is_split() const { return prev || next; }
  };
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      if (a->stream != b->stream) return a->stream < b->stream;
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };
  struct ByAddress {
    bool operator()(const Chunk* a, const Chunk* b) const {
      return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
    }
  };
  struct Pool {
    bool small;
    std::set<Chunk*, BySize> free;
    std::set<Chunk*, ByAddress> unmapped;
    int64_t searches = 0;
  };
  // One range of addresses into which handles of one size are mapped.
  struct Range {
    Address base;
    Bytes handle_bytes, size;
    Stream stream;
    std::vector<Handle> handles;  // by position; 0: not mapped
  };

  void insert_free(Chunk* chunk);
  bool should_split(const Chunk* chunk, Bytes size) const;
  Chunk* find(Pool& pool, Bytes size, Stream stream);
  Chunk* grow(Pool& pool, Bytes size, Bytes region, Stream stream);
  Chunk* grow_range(Pool& pool, Bytes size, Stream stream);
  Chunk* expandable_candidate(Pool& pool, Bytes size, Stream stream);
  bool map_chunk(Chunk* chunk, Bytes size);
  void unmap_chunk(Chunk* chunk);
  bool try_merge(Chunk* into, Chunk* other);
  void collect_garbage();
  bool release_oversize(Pool& pool, Bytes size, Stream stream);
  void release(Chunk* chunk);
  void release_free(Pool& pool);
  void check(const Pool& pool) const;

  Driver& driver_;
  Bytes limit_, reserved_ = 0;
  TorchOptions options_;
  Pool small_{true, {}, {}, 0}, large_{false, {}, {}, 0};
  LiveChunks<Chunk> in_use_;
  std::map<Address, Range> ranges_;
  ChunkStore<Chunk> chunks_;
};

}  // namespace flatout::devmem

// TensorFlow's BFC arena (best fit with coalescing), decision by decision as tsl::BFCAllocator of
// TensorFlow 2.21 takes them (its first region is 2 MiB; before 2.4 it was 1 MiB).
// golden_test.cpp holds every offset to the original. Unlike it a chunk costs host memory when
// it exists, not 8 bytes for each 256 of the pool.
#pragma once

#include <array>
#include <map>
#include <set>

#include "devmem/chunk_store.h"
#include "devmem/policy.h"

namespace flatout::devmem {

struct BfcOptions {
  bool allow_growth = true;        // false: takes the whole limit with the first request
  bool garbage_collection = true;  // TF_ENABLE_GPU_GARBAGE_COLLECTION
  double fragmentation_fraction =
      0;  // of the limit that a chunk may exceed its request by; 0: 128 MiB
};

class Bfc : public Policy {
 public:
  Bfc(Driver& driver, Bytes limit, BfcOptions options);
  ~Bfc() override;

  Result<Address> allocate(Bytes size, Stream stream) override;
  Status free(Address address) override;
  void trim() override { give_back_free_regions(0); }
  PolicyStats stats() const override;
  void check() const override;

 private:
  static constexpr Bytes kGranule = 256;
  static constexpr int kBins = 21;  // bin b: [256 << b, 256 << (b + 1)), the last one all above

  struct Chunk {
    Address address = 0;
    Bytes size = 0, requested = 0;
    Chunk *prev = nullptr, *next = nullptr;  // neighbours in the region
    bool in_use = false, binned = false;
  };
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };
  struct Region {
    Bytes size;
    Chunk* first;
  };

  static int bin_of(Bytes size);
  void insert_free(Chunk* chunk);
  void remove_free(Chunk* chunk);
  void split(Chunk* chunk, Bytes size);
  void merge(Chunk* low, Chunk* high);
  Chunk* coalesce(Chunk* chunk);
  Chunk* find(Bytes rounded, Bytes size);
  bool extend(Bytes rounded);
  bool give_back_free_regions(Bytes rounded);

  Driver& driver_;
  Bytes limit_, pool_ = 0, region_bytes_, max_waste_;
  BfcOptions options_;
  std::array<std::set<Chunk*, BySize>, kBins> bins_;
  std::map<Address, Region> regions_;
  LiveChunks<Chunk> in_use_;
  ChunkStore<Chunk> chunks_;
};

}  // namespace flatout::devmem

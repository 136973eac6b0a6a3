// Our policy. One range of addresses for the device; a request takes the lowest hole that holds it;
// physical memory is mapped behind a hole only when none does, where the fewest new pages are
// enough, and what lies idle elsewhere, highest first, is moved there before the driver is asked
// for more.
//
// A handle can be mapped only as a whole, and mapping costs by the handle. So handles are as large
// as the request that needed them (within bounds that grow with the arena), chunks are cut by
// address whatever the handles beneath, and only handles that hold nothing live are moved. Memory
// is moved twice at most after it was last asked for: in steps that repeat themselves nothing is
// asked for, so nothing is moved either. A hole is reused on the stream that freed it; others take
// it after waiting for that stream, which counts as a move. Where the device or the limit is full,
// memory is moved and streams are waited for as often as it takes.
#pragma once

#include <map>
#include <unordered_map>

#include "devmem/chunk_store.h"
#include "devmem/hole_tree.h"
#include "devmem/policy.h"

namespace flatout::devmem {

class Arena : public Policy {
 public:
  Arena(Driver& driver, Bytes limit) : driver_(driver), limit_(limit) {}
  ~Arena() override;

  Result<Address> allocate(Bytes size, Stream stream) override;
  Status free(Address address) override;
  void trim() override;
  PolicyStats stats() const override;
  void check() const override;

 private:
  static constexpr Bytes kGranule = 256;

  enum class State : uint32_t { kLive, kFree, kGap };  // kGap: addresses without memory
  struct Chunk {
    Address address = 0;
    Bytes size = 0;
    Chunk *prev = nullptr, *next = nullptr;   // by address
    Chunk *left = nullptr, *right = nullptr;  // of free ones, in the lane's tree
    union {
      Bytes largest = 0;  // of free ones
      Bytes requested;    // of live ones
    };
    uint32_t lane = 0;  // of live and free ones
    State state = State::kGap;
  };
  static_assert(sizeof(Chunk) == 64);
  // Holes of one stream: only these merge.
  struct Lane {
    Stream stream;
    HoleTree<Chunk> holes;
    bool waited;  // for it, while growing
  };
  struct Mapping {
    Handle handle;
    Bytes size;
  };
  struct Idle {
    Address address;
    Bytes size;
    Chunk* chunk;
  };
  // Where a request will lie once memory is mapped behind [begin, end) throughout.
  struct Site {
    Address begin = 0, end = 0;
    Bytes missing = 0;
  };

  uint32_t lane_of(Stream stream);
  HoleTree<Chunk>& holes_of(const Chunk* chunk) { return lanes_[chunk->lane].holes; }
  Chunk* cut(Chunk* chunk, Bytes size);  // leaves `size` in chunk; the rest is returned, in no set
  void drop(Chunk* chunk);               // its neighbour has taken its place
  void put_free(Chunk* chunk);           // merges with free neighbours of its lane
  void put_gap(Chunk* chunk);            // merges with neighbouring gaps

  Chunk* take(Chunk* hole, Bytes size, uint32_t lane);
  Chunk* adopt(Bytes size, uint32_t lane);
  void settle(uint32_t lane);
  Status open_range();
  Site choose_site(Bytes size, uint32_t lane) const;
  std::vector<Idle> idle_handles(Address but_from, Address but_to) const;
  Handle lift(std::vector<Idle>& idle, std::vector<Idle>::iterator which);
  void map_at(Address address, Handle handle, Bytes size, uint32_t lane);
  Bytes move_here(Address begin, Bytes needed, Bytes room, std::vector<Idle>& idle, uint32_t lane);
  Bytes ask_for(Address begin, Bytes needed, Bytes room, uint32_t lane);
  bool grow(Bytes size, uint32_t lane, bool move);

  Driver& driver_;
  Bytes limit_, reserved_ = 0;
  Address base_ = 0;  // 0: no range yet
  int credit_ = 0;    // how often memory may be moved or a stream waited for
  std::vector<Lane> lanes_;
  std::unordered_map<Stream, uint32_t> lane_by_stream_;
  std::map<Address, Chunk*> gaps_;
  std::map<Address, Mapping> mappings_;
  LiveChunks<Chunk> live_;
  ChunkStore<Chunk> chunks_;
};

}  // namespace flatout::devmem

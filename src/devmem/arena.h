// Our policy. One range of addresses for the device; best fit by size, then address, among the
// holes in it; physical memory is mapped behind a hole only when no hole holds the request, and
// what lies idle elsewhere is moved there before the driver is asked for more.
//
// A handle can be mapped only as a whole, and mapping costs by the handle. So handles are as large
// as the request that needed them (within bounds that grow with the arena), chunks are cut by
// address whatever the handles beneath, and only handles that hold nothing live are moved. Small
// requests have an end of the range to themselves, so that none of them holds a large handle in its
// place. A hole is reused on the stream that freed it; others take it after waiting for that
// stream.
#pragma once

#include <map>
#include <set>

#include "devmem/chunk_store.h"
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
  static constexpr Bytes kSmallRequest = Bytes{1} << 17;  // up to here the upper end serves

  // Which holes may merge and serve: those of one stream and one end of the range.
  using Lane = uint64_t;
  static Lane lane_of(Bytes size, Stream stream) { return stream << 1 | (size <= kSmallRequest); }
  static bool is_small(Lane lane) { return (lane & 1) != 0; }

  enum class State : uint8_t { kLive, kFree, kGap };  // kGap: addresses without memory
  struct Chunk {
    Address address = 0;
    Bytes size = 0, requested = 0;
    Lane lane = 0;  // of live and free ones
    Chunk *prev = nullptr, *next = nullptr;
    State state = State::kGap;
  };
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const {
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };
  using FreeSet = std::set<Chunk*, BySize>;
  struct Mapping {
    Handle handle;
    Bytes size;
  };
  struct Idle {
    Address address;
    Bytes size;
    Chunk* chunk;
  };
  // Where to grow: memory goes to [gap's begin, + need), after which the chunk before it, if it is
  // free and of the lane, holds the request.
  struct Site {
    Chunk* gap = nullptr;
    Bytes need = 0;
  };

  Chunk* cut(Chunk* chunk, Bytes size);  // leaves `size` in chunk; the rest is returned, in no set
  void put_free(Chunk* chunk);           // merges with free neighbours of its lane
  void put_gap(Chunk* chunk);            // merges with neighbouring gaps
  void forget(Chunk* chunk);             // takes it out of the set it is in

  Chunk* best_fit(Bytes size, Lane lane);
  Chunk* adopt(Bytes size, Lane lane);
  bool holds_for_others(Lane lane) const;
  void settle(Lane lane);
  Status open_range();
  Site choose_site(Bytes size, Lane lane) const;
  std::vector<Idle> idle_handles(const Chunk* but, const Chunk* and_but) const;
  Handle lift(std::vector<Idle>& idle, std::vector<Idle>::iterator which);
  Chunk* map_at(Chunk* gap, Handle handle, Bytes size, Lane lane);
  bool grow(Bytes size, Lane lane);

  Driver& driver_;
  Bytes limit_, reserved_ = 0;
  Address base_ = 0, upper_ = 0;  // the upper end begins there; 0: no range yet
  std::map<Lane, FreeSet> free_;
  std::map<Address, Chunk*> gaps_;
  std::map<Address, Mapping> mappings_;
  LiveChunks<Chunk> live_;
  ChunkStore<Chunk> chunks_;
};

}  // namespace flatout::devmem

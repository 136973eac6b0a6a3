// Our policy. One range of addresses for the device; a request takes the lowest hole that holds it.
// Small requests look in the upper half of the range first, so that those that live long do not
// keep pages that larger ones leave, and larger ones in the lower; a half that has no hole is
// helped out by the other before new memory is asked for. Where no hole holds a request, what is
// free in several places is joined: a handle may be mapped at a second place, so the free end of
// one, wholly free ones and the free begin of another are mapped side by side there (a view), and
// only what is missing still is asked of the driver.
//
// A view's pieces are chunks of the range like others, taken while the view is live. Once freed it
// stays mapped, and serves the request of its size for which its pieces are free, or any other that
// fits in what is free of it: steps that repeat themselves come to cost no call. Mapping costs by
// the handle, so handles are as large as the request that needed them (within bounds that grow with
// the arena and shrink with what the device has left), and views are made on credit that new memory
// gives: calls end where growth does. A hole is reused on the stream that freed it; others take it
// after waiting for that stream, on credit, too. Where the device or the limit is full, views are
// made and streams are waited for as often as it takes.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

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

  // kGap: addresses without memory. kPiece: of a live view. kView: reached by a view's addresses,
  // not one of the range. kMiddle: the page without memory between the range's halves.
  enum class State : uint32_t { kLive, kFree, kGap, kPiece, kView, kMiddle };
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
    HoleTree<Chunk> lower, upper;  // by the half of the range
    bool empty() const { return lower.empty() && upper.empty(); }
    /// The lowest in the half that is for this size, or else in the other.
    Chunk* find(Bytes size) const;
  };
  struct Mapping {
    Handle handle;
    Bytes size;
  };
  // Where a request will lie once memory is mapped behind [begin, end) throughout.
  struct Site {
    Address begin = 0, end = 0;
    Bytes missing = 0;
  };
  // Part of the memory of the handle that is mapped at `mapped` in the range.
  struct Piece {
    Address mapped;
    Bytes mapped_size;
    Address begin;
    Bytes size;
  };
  // What a request takes of a view.
  struct Run {
    Address address = 0;
    std::vector<Piece> pieces;
    Bytes broken = 0;  // of handles that were wholly free
  };
  struct View {
    Address reserved = 0;       // by the driver
    Address range = 0;          // where the first piece's handle is mapped again
    std::vector<Piece> pieces;  // as it was made: each handle, and what of it was free
    std::vector<Chunk*> taken;  // none: not live
    Chunk* chunk = nullptr;
  };
  // What is free of handles in a lane, each by size: all of one, its end, its begin.
  struct FreeParts {
    std::vector<Piece> whole, ends, begins;
  };
  // The pieces in their order; new memory lies behind them, but before a last one that is the free
  // begin of a handle.
  struct Plan {
    std::vector<Piece> pieces;
    Bytes missing = 0;
    Bytes broken = 0;  // of handles that were wholly free
    bool ends_with_begin = false;
  };

  uint32_t lane_of(Stream stream);
  HoleTree<Chunk>& holes_at(uint32_t lane, Address address) {
    return address < middle_ ? lanes_[lane].lower : lanes_[lane].upper;
  }
  HoleTree<Chunk>& holes_of(const Chunk* chunk) { return holes_at(chunk->lane, chunk->address); }
  Chunk* hole_at(uint32_t lane, Address address) const {
    return (address < middle_ ? lanes_[lane].lower : lanes_[lane].upper).at(address);
  }
  Chunk* cut(Chunk* chunk, Bytes size);  // leaves `size` in chunk; the rest is returned, in no set
  void drop(Chunk* chunk);               // its neighbour has taken its place
  void put_free(Chunk* chunk);           // merges with free neighbours of its lane
  void put_gap(Chunk* chunk);            // merges with neighbouring gaps

  Chunk* take(Chunk* hole, Bytes size, uint32_t lane);
  Chunk* take_at(Address begin, Bytes size, uint32_t lane);
  Chunk* adopt(Bytes size, uint32_t lane);
  void settle(uint32_t lane);
  Status open_range();
  Site choose_site(Bytes size, uint32_t lane) const;
  void map_at(Address gap, Handle handle, Bytes size, uint32_t lane);
  Bytes ask_for(Address gap, Bytes needed, uint32_t lane);
  bool grow(const Site& site, uint32_t lane);

  FreeParts free_parts(uint32_t lane) const;
  static Plan plan_view(Bytes size, const FreeParts& parts);
  static void add_pair(Plan& plan, Bytes left, const FreeParts& parts);
  Chunk* idle_view(Bytes size, uint32_t lane);
  Chunk* part_of_view(Bytes size, uint32_t lane, Bytes most_broken);
  Chunk* make_view(Plan plan, Bytes size, uint32_t lane);
  static Run run_as_made(const View& view);
  Run find_run(const View& view, Bytes size, uint32_t lane) const;
  Chunk* open_view(View& view, const Run& run, Bytes size, uint32_t lane);
  void unmap(const View& view);
  void shrink(View& view);
  bool drop_idle_views();
  Chunk* make_room(Bytes size, uint32_t lane, bool on_credit);

  Driver& driver_;
  Bytes limit_, reserved_ = 0;
  Address base_ = 0;          // 0: no range yet
  Address middle_ = 0;        // where its upper half begins
  int waits_ = 0;             // how often a stream may be waited for
  size_t mappings_left_ = 0;  // how many handles may be mapped again
  size_t mapped_again_ = 0;
  std::vector<Lane> lanes_;
  std::unordered_map<Stream, uint32_t> lane_by_stream_;
  std::map<Address, Chunk*> gaps_;
  std::map<Address, Mapping> mappings_;  // in the range
  std::unordered_map<const Chunk*, View> views_;
  std::multimap<Bytes, const Chunk*> views_by_size_;  // as they were made
  LiveChunks<Chunk> live_;
  ChunkStore<Chunk> chunks_;
};

}  // namespace flatout::devmem

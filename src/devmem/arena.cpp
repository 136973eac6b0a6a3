#include "devmem/arena.h"

#include <algorithm>

#include <fmt/format.h>

namespace flatout::devmem {
namespace {

// The range is this many times what may be mapped: moving memory to its end uses addresses up
// until gaps in the middle are filled again.
constexpr uint64_t kRangeFactor = 4;

// How much is asked for at least, and how large one handle gets. Asking for more than is needed
// saves calls and costs what stays unused at the peak. Small handles move more easily, and cost
// more calls (docs/devmem.md has the trade-off).
Bytes least_growth(Bytes reserved) {
  return std::clamp(reserved / 128 / kPageBytes * kPageBytes, kPageBytes, 10 * kPageBytes);
}
Bytes largest_handle(Bytes reserved, Bytes needed) {
  return std::clamp(std::max(reserved / 32, needed / 16) / kPageBytes * kPageBytes, 2 * kPageBytes,
                    256 * kPageBytes);
}

// How many moves and waits are on credit.
constexpr int kMostCredit = 2;

}  // namespace

Arena::~Arena() {
  if (base_ == 0) return;
  for (const auto& [address, mapping] : mappings_) {
    driver_.unmap(address);
    driver_.release(mapping.handle);
  }
  driver_.unreserve(base_);
}

Arena::Chunk* Arena::cut(Chunk* chunk, Bytes size) {
  Chunk* rest = chunks_.make();
  *rest = *chunk;
  rest->address += size;
  rest->size -= size;
  rest->prev = chunk;
  if (rest->next) rest->next->prev = rest;
  chunk->next = rest;
  chunk->size = size;
  return rest;
}

void Arena::drop(Chunk* chunk) {
  if (chunk->prev) chunk->prev->next = chunk->next;
  if (chunk->next) chunk->next->prev = chunk->prev;
  chunks_.drop(chunk);
}

void Arena::put_free(Chunk* chunk) {
  HoleTree<Chunk>& holes = holes_of(chunk);
  const auto same = [&](const Chunk* c) {
    return c && c->state == State::kFree && c->lane == chunk->lane;
  };
  Chunk *prev = chunk->prev, *next = chunk->next;
  if (same(prev)) {
    Bytes size = prev->size + chunk->size;
    if (same(next)) {
      size += next->size;
      holes.erase(next);
      drop(next);
    }
    drop(chunk);
    holes.resize(prev, prev->address, size);
  } else if (same(next)) {
    const Address address = chunk->address;
    const Bytes size = chunk->size + next->size;
    drop(chunk);
    holes.resize(next, address, size);
  } else {
    chunk->state = State::kFree;
    holes.insert(chunk);
  }
}

void Arena::put_gap(Chunk* chunk) {
  chunk->state = State::kGap;
  if (Chunk* next = chunk->next; next && next->state == State::kGap) {
    gaps_.erase(next->address);
    chunk->size += next->size;
    drop(next);
  }
  if (Chunk* prev = chunk->prev; prev && prev->state == State::kGap) {
    prev->size += chunk->size;
    drop(chunk);
    return;
  }
  gaps_.emplace(chunk->address, chunk);
}

uint32_t Arena::lane_of(Stream stream) {
  const auto [it, fresh] = lane_by_stream_.try_emplace(stream, lanes_.size());
  if (fresh) lanes_.push_back({stream, {}, false});
  return it->second;
}

// The live chunk of that size at the hole's begin.
Arena::Chunk* Arena::take(Chunk* hole, Bytes size, uint32_t lane) {
  Chunk* chunk = hole;
  if (hole->size == size) {
    holes_of(hole).erase(hole);
  } else {
    chunk = chunks_.make();
    chunk->address = hole->address;
    chunk->size = size;
    chunk->prev = hole->prev;
    chunk->next = hole;
    if (hole->prev) hole->prev->next = chunk;
    hole->prev = chunk;
    holes_of(hole).resize(hole, hole->address + size, hole->size - size);
  }
  chunk->state = State::kLive;
  chunk->lane = lane;
  return chunk;
}

// The lowest hole among what other streams freed, after waiting for the one that did.
Arena::Chunk* Arena::adopt(Bytes size, uint32_t lane) {
  Chunk* lowest = nullptr;
  for (const Lane& other : lanes_) {
    if (&other == &lanes_[lane]) continue;
    Chunk* hole = other.holes.find(size);
    if (hole && (!lowest || hole->address < lowest->address)) lowest = hole;
  }
  if (lowest) driver_.synchronize(lanes_[lowest->lane].stream);
  return lowest;
}

// Waits for all streams: what any of them freed is then this lane's, and merges.
void Arena::settle(uint32_t lane) {
  std::vector<Chunk*> others;
  for (Lane& other : lanes_) {
    if (&other == &lanes_[lane] || other.holes.empty()) continue;
    driver_.synchronize(other.stream);
    other.holes.each(1, [&](Chunk* hole) { others.push_back(hole); });
    other.holes.clear();
  }
  for (Chunk* chunk : others) {
    chunk->lane = lane;
    chunk->state = State::kLive;  // in no set: what is not put yet must not merge
  }
  for (Chunk* chunk : others) put_free(chunk);
}

Status Arena::open_range() {
  const Bytes size = round_up(std::min(limit_, driver_.total_bytes()), kPageBytes) * kRangeFactor;
  FLATOUT_TRY(base_, driver_.reserve(size));
  Chunk* gap = chunks_.make();
  gap->address = base_;
  gap->size = size;
  put_gap(gap);
  return {};
}

// Of the runs of gaps and holes that are long enough the one that needs the least new memory, the
// lowest of equal ones.
Arena::Site Arena::choose_site(Bytes size, uint32_t lane) const {
  const auto is_hole = [&](const Chunk* c) { return c->state == State::kFree && c->lane == lane; };
  Site best;
  for (const auto& [address, gap] : gaps_) {
    const Chunk* first = gap->prev && is_hole(gap->prev) ? gap->prev : gap;
    Site site{first->address, first->address + size, 0};
    Address at = first->address;
    for (const Chunk* c = first; c && at < site.end; c = c->next) {
      if (c->state == State::kGap) {
        site.missing += std::min(round_up(site.end - at, kPageBytes), c->size);
      } else if (!is_hole(c)) {
        break;
      }
      at = c->address + c->size;
    }
    if (at >= site.end && (best.end == 0 || site.missing < best.missing)) best = site;
  }
  return best;
}

// Handles that hold nothing live, smallest first, the highest of equal ones, but for those that lie
// behind the addresses named.
std::vector<Arena::Idle> Arena::idle_handles(Address but_from, Address but_to) const {
  std::vector<Idle> idle;
  for (const Lane& lane : lanes_) {
    lane.holes.each(kPageBytes, [&](Chunk* chunk) {
      for (auto m = mappings_.lower_bound(chunk->address);
           m != mappings_.end() && m->first + m->second.size <= chunk->address + chunk->size; ++m)
        if (m->first >= but_to || m->first + m->second.size <= but_from)
          idle.push_back({m->first, m->second.size, chunk});
    });
  }
  std::sort(idle.begin(), idle.end(), [](const Idle& a, const Idle& b) {
    return a.size != b.size ? a.size < b.size : a.address > b.address;
  });
  return idle;
}

// Unmaps one of the idle handles, takes it off the list and leaves a gap where it was.
Handle Arena::lift(std::vector<Idle>& idle, std::vector<Idle>::iterator which) {
  const Idle taken = *which;
  idle.erase(which);
  const auto it = mappings_.find(taken.address);
  const Handle handle = it->second.handle;
  driver_.unmap(taken.address);
  mappings_.erase(it);
  reserved_ -= taken.size;

  HoleTree<Chunk>& holes = holes_of(taken.chunk);
  holes.erase(taken.chunk);
  Chunk* middle = taken.chunk;
  if (taken.address > taken.chunk->address) {
    middle = cut(taken.chunk, taken.address - taken.chunk->address);
    holes.insert(taken.chunk);
  }
  if (middle->size > taken.size) {
    Chunk* rest = cut(middle, taken.size);
    holes.insert(rest);
    for (Idle& other : idle)
      if (other.chunk == taken.chunk && other.address > taken.address) other.chunk = rest;
  }
  put_gap(middle);
  return handle;
}

// Maps the handle into a gap: where it begins, or, if what lay before was lifted meanwhile, within.
void Arena::map_at(Address address, Handle handle, Bytes size, uint32_t lane) {
  driver_.map(address, handle);
  mappings_.emplace(address, Mapping{handle, size});
  reserved_ += size;
  Chunk* chunk = std::prev(gaps_.upper_bound(address))->second;
  if (chunk->address < address) {
    chunk = cut(chunk, address - chunk->address);
  } else {
    gaps_.erase(address);
  }
  if (chunk->size > size) {
    Chunk* rest = cut(chunk, size);
    gaps_.emplace(rest->address, rest);
  }
  chunk->lane = lane;
  put_free(chunk);
}

// Maps idle handles from the address on until `needed` is reached, of which a gap has `room`: the
// smallest that is enough, else the largest. What it came to.
Bytes Arena::move_here(Address begin, Bytes needed, Bytes room, std::vector<Idle>& idle,
                       uint32_t lane) {
  Bytes got = 0;
  while (got < needed && !idle.empty()) {
    auto it = std::lower_bound(idle.begin(), idle.end(), needed - got,
                               [](const Idle& i, Bytes need) { return i.size < need; });
    if (it == idle.end() || it->size > room - got) {
      if (it == idle.begin()) break;
      --it;
    }
    const Bytes bytes = it->size;
    Lane& from = lanes_[it->chunk->lane];
    if (!from.waited) driver_.synchronize(from.stream);
    from.waited = true;
    map_at(begin + got, lift(idle, it), bytes, lane);
    got += bytes;
  }
  return got;
}

// The same with new memory, with something to spare where that fits.
Bytes Arena::ask_for(Address begin, Bytes needed, Bytes room, uint32_t lane) {
  const Bytes largest = largest_handle(reserved_, needed);
  Bytes got = 0;
  while (got < needed) {
    const Bytes need = needed - got;
    const Bytes most = std::min(room - got, limit_ > reserved_ ? limit_ - reserved_ : 0);
    Bytes bytes = std::min(std::max(need, least_growth(reserved_)), largest);
    if (bytes > most) bytes = std::min(need, most / kPageBytes * kPageBytes);
    if (bytes == 0) break;
    auto handle = driver_.create(bytes);
    if (!handle.ok() && bytes > need) handle = driver_.create(bytes = need);
    if (!handle.ok()) break;
    map_at(begin + got, *handle, bytes, lane);
    got += bytes;
  }
  return got;
}

// Brings memory to where it makes a hole of `size`, idle memory if it may be moved. False: the
// device is full; what was brought stays as a hole.
bool Arena::grow(Bytes size, uint32_t lane, bool move) {
  const Site site = choose_site(size, lane);
  if (site.end == 0) return false;
  const Address end = round_up(site.end, kPageBytes);
  std::vector<Idle> idle;
  if (move) idle = idle_handles(site.begin / kPageBytes * kPageBytes, end);
  for (Lane& each : lanes_) each.waited = false;
  bool enough = true;
  Bytes moved = 0, fresh = 0;
  for (auto gap = gaps_.lower_bound(site.begin);
       enough && gap != gaps_.end() && gap->first < site.end; gap = gaps_.lower_bound(site.begin)) {
    const Address begin = gap->first;
    const Bytes room = gap->second->size, needed = std::min(end - begin, room);
    const Bytes here = move_here(begin, needed, room, idle, lane);
    moved += here;
    Bytes got = here;
    if (got < needed) {
      const Bytes asked = ask_for(begin + got, needed - got, room - got, lane);
      fresh += asked;
      got += asked;
    }
    if (got > 0) driver_.set_access(begin, got);
    enough = got >= needed;
  }
  if (moved > 0 && credit_ > 0) --credit_;
  if (fresh > 0) credit_ = std::min(credit_ + 1, kMostCredit);
  return enough;
}

Result<Address> Arena::allocate(Bytes requested, Stream stream) {
  const Bytes size = round_up(requested, kGranule);
  if (base_ == 0) FLATOUT_TRY_STATUS(open_range());
  const uint32_t lane = lane_of(stream);
  const HoleTree<Chunk>& holes = lanes_[lane].holes;
  Chunk* hole = holes.find(size);
  if (!hole && lanes_.size() > 1 && credit_ > 0) {
    hole = adopt(size, lane);
    if (hole) --credit_;
  }
  if (!hole && grow(size, lane, credit_ > 0)) hole = holes.find(size);
  if (!hole) {
    settle(lane);
    hole = holes.find(size);
  }
  if (!hole && grow(size, lane, true)) hole = holes.find(size);
  if (!hole) return Error{Code::kFull, fmt::format("no {} bytes on the device", size), ""};
  return live_.add(take(hole, size, lane), requested);
}

Status Arena::free(Address address) {
  FLATOUT_TRY(Chunk* const chunk, live_.remove(address));
  put_free(chunk);
  return {};
}

void Arena::trim() {
  if (lanes_.empty()) return;
  settle(0);
  std::vector<Idle> idle = idle_handles(0, 0);
  if (idle.empty()) return;
  driver_.synchronize(lanes_[0].stream);
  while (!idle.empty()) driver_.release(lift(idle, std::prev(idle.end())));
}

PolicyStats Arena::stats() const {
  PolicyStats stats = live_.stats(reserved_);
  for (const Lane& lane : lanes_)
    stats.largest_free = std::max(stats.largest_free, lane.holes.largest());
  return stats;
}

void Arena::check() const {
  if (base_ == 0) return;
  const auto first = std::find_if(chunks_.all().begin(), chunks_.all().end(),
                                  [&](const Chunk& c) { return c.address == base_; });
  FLATOUT_CHECK(first != chunks_.all().end());
  Bytes mapped = 0, allocated = 0;
  size_t free_chunks = 0, gaps = 0;
  for (const Chunk* c = &*first; c; c = c->next) {
    FLATOUT_CHECK(c->size > 0 && (!c->next || c->next->prev == c));
    FLATOUT_CHECK(!c->next || c->next->address == c->address + c->size);
    if (c->state == State::kGap) {
      ++gaps;
      FLATOUT_CHECK(gaps_.at(c->address) == c && c->size % kPageBytes == 0);
      FLATOUT_CHECK(!c->next || c->next->state != State::kGap);
      continue;
    }
    mapped += c->size;
    if (c->state == State::kLive) {
      allocated += c->size;
      FLATOUT_CHECK(live_.holds(c));
    } else {
      ++free_chunks;
      FLATOUT_CHECK(lanes_[c->lane].holes.holds(c));
      FLATOUT_CHECK(!c->next || c->next->state != State::kFree || c->next->lane != c->lane);
    }
  }
  size_t in_trees = 0;
  for (const Lane& lane : lanes_) lane.holes.each(1, [&](Chunk*) { ++in_trees; });
  Bytes handles = 0;
  for (const auto& [address, mapping] : mappings_) handles += mapping.size;
  FLATOUT_CHECK(in_trees == free_chunks && gaps == gaps_.size() && allocated == live_.allocated());
  FLATOUT_CHECK(mapped == reserved_ && handles == reserved_);
}

}  // namespace flatout::devmem

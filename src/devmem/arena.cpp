#include "devmem/arena.h"

#include <algorithm>

#include <fmt/format.h>

namespace flatout::devmem {
namespace {

// The range is this many times what may be mapped: moving memory to its end uses addresses up
// until gaps in the middle are filled again.
constexpr uint64_t kRangeFactor = 4;

// How much is asked for at least, and how large one handle gets. Asking for more than is needed
// saves calls and costs what stays unused at the peak: 1/128 of the arena at most, for each end.
// Small handles move more easily, and cost more calls (docs/devmem.md has the trade-off).
Bytes least_growth(Bytes reserved) {
  return std::clamp(reserved / 128 / kPageBytes * kPageBytes, kPageBytes, 10 * kPageBytes);
}
Bytes largest_handle(Bytes reserved) {
  return std::clamp(reserved / 32 / kPageBytes * kPageBytes, 2 * kPageBytes, 256 * kPageBytes);
}

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

void Arena::forget(Chunk* chunk) {
  if (chunk->state == State::kFree) free_[chunk->lane].erase(chunk);
  if (chunk->state == State::kGap) gaps_.erase(chunk->address);
}

void Arena::put_free(Chunk* chunk) {
  chunk->state = State::kFree;
  const auto same = [&](const Chunk* c) {
    return c && c->state == State::kFree && c->lane == chunk->lane;
  };
  if (Chunk* next = chunk->next; same(next)) {
    forget(next);
    chunk->size += next->size;
    chunk->next = next->next;
    if (chunk->next) chunk->next->prev = chunk;
    chunks_.drop(next);
  }
  if (Chunk* prev = chunk->prev; same(prev)) {
    forget(prev);
    prev->size += chunk->size;
    prev->next = chunk->next;
    if (prev->next) prev->next->prev = prev;
    chunks_.drop(chunk);
    chunk = prev;
  }
  free_[chunk->lane].insert(chunk);
}

void Arena::put_gap(Chunk* chunk) {
  chunk->state = State::kGap;
  if (Chunk* next = chunk->next; next && next->state == State::kGap) {
    forget(next);
    chunk->size += next->size;
    chunk->next = next->next;
    if (chunk->next) chunk->next->prev = chunk;
    chunks_.drop(next);
  }
  if (Chunk* prev = chunk->prev; prev && prev->state == State::kGap) {
    prev->size += chunk->size;
    prev->next = chunk->next;
    if (prev->next) prev->next->prev = prev;
    chunks_.drop(chunk);
    return;
  }
  gaps_.emplace(chunk->address, chunk);
}

Arena::Chunk* Arena::best_fit(Bytes size, Lane lane) {
  FreeSet& set = free_[lane];
  Chunk probe;
  probe.size = size;
  const auto it = set.lower_bound(&probe);
  if (it == set.end()) return nullptr;
  Chunk* chunk = *it;
  set.erase(it);
  return chunk;
}

// The best fit among what other streams freed, after waiting for the one that did.
Arena::Chunk* Arena::adopt(Bytes size, Lane lane) {
  Chunk probe, *best = nullptr;
  probe.size = size;
  for (auto& [other, set] : free_) {
    if (other == lane || is_small(other) != is_small(lane)) continue;
    const auto it = set.lower_bound(&probe);
    if (it != set.end() && (!best || BySize()(*it, best))) best = *it;
  }
  if (!best) return nullptr;
  driver_.synchronize(best->lane >> 1);
  forget(best);
  return best;
}

bool Arena::holds_for_others(Lane lane) const {
  return std::any_of(free_.begin(), free_.end(), [&](const auto& entry) {
    return entry.first != lane && is_small(entry.first) == is_small(lane) && !entry.second.empty();
  });
}

// Waits for all streams: what any of them freed is then this lane's, and merges.
void Arena::settle(Lane lane) {
  std::vector<Chunk*> others;
  for (auto& [other, set] : free_) {
    if (other == lane || is_small(other) != is_small(lane) || set.empty()) continue;
    driver_.synchronize(other >> 1);
    others.insert(others.end(), set.begin(), set.end());
    set.clear();
  }
  // By address, and each only if an earlier one has not taken it in: put_free() merges with what is
  // free on the lane already, which the rest is not yet.
  std::sort(others.begin(), others.end(),
            [](const Chunk* a, const Chunk* b) { return a->address < b->address; });
  for (Chunk* chunk : others) {
    chunk->lane = lane;
    chunk->state = State::kLive;  // in no set
  }
  for (Chunk* chunk : others) put_free(chunk);
}

Status Arena::open_range() {
  const Bytes size =
      round_up(std::min(limit_, driver_.total_bytes()), kPageBytes) * kRangeFactor + 2 * kPageBytes;
  FLATOUT_TRY(base_, driver_.reserve(size));
  Chunk* gap = chunks_.make();
  gap->address = base_;
  gap->size = size;
  // A page between the two ends that is never mapped keeps them apart.
  Chunk* wall = cut(gap, size / 2);
  wall->state = State::kLive;
  Chunk* upper = cut(wall, kPageBytes);
  upper_ = upper->address;
  put_gap(gap);
  put_gap(upper);
  return {};
}

// The gap that needs the least new memory, the lowest of equal ones.
Arena::Site Arena::choose_site(Bytes size, Lane lane) const {
  Site best;
  const auto held = [&](const Chunk* c) {
    return c && c->state == State::kFree && c->lane == lane ? c->size : 0;
  };
  for (const auto& [address, gap] : gaps_) {
    if ((address >= upper_) != is_small(lane)) continue;
    const Bytes before = held(gap->prev), behind = held(gap->next);
    if (before + gap->size + behind < size) continue;
    const Bytes need = std::min(round_up(size - before, kPageBytes), gap->size);
    if (!best.gap || need < best.need) best = {gap, need};
  }
  return best;
}

// Handles that hold nothing live, smallest first, but for those in the two chunks named.
std::vector<Arena::Idle> Arena::idle_handles(const Chunk* but, const Chunk* and_but) const {
  std::vector<Idle> idle;
  for (const auto& [lane, set] : free_) {
    Chunk probe;
    probe.size = kPageBytes;
    for (auto it = set.lower_bound(&probe); it != set.end(); ++it) {
      Chunk* chunk = *it;
      if (chunk == but || chunk == and_but) continue;
      for (auto m = mappings_.lower_bound(chunk->address);
           m != mappings_.end() && m->first + m->second.size <= chunk->address + chunk->size; ++m)
        idle.push_back({m->first, m->second.size, chunk});
    }
  }
  std::sort(idle.begin(), idle.end(), [](const Idle& a, const Idle& b) {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
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

  forget(taken.chunk);
  Chunk* middle = taken.chunk;
  if (taken.address > taken.chunk->address) {
    middle = cut(taken.chunk, taken.address - taken.chunk->address);
    free_[taken.chunk->lane].insert(taken.chunk);
  }
  if (middle->size > taken.size) {
    Chunk* rest = cut(middle, taken.size);
    free_[rest->lane].insert(rest);
    for (Idle& other : idle)
      if (other.chunk == taken.chunk && other.address > taken.address) other.chunk = rest;
  }
  put_gap(middle);
  return handle;
}

// Maps the handle at the gap's begin. Returns what is left of the gap, or nullptr.
Arena::Chunk* Arena::map_at(Chunk* gap, Handle handle, Bytes size, Lane lane) {
  driver_.map(gap->address, handle);
  mappings_.emplace(gap->address, Mapping{handle, size});
  reserved_ += size;
  forget(gap);
  Chunk* rest = nullptr;
  if (gap->size > size) {
    rest = cut(gap, size);
    gaps_.emplace(rest->address, rest);
  }
  gap->lane = lane;
  put_free(gap);
  return rest;
}

// Brings memory to where it makes a hole of `size`. False: the device is full; what was brought
// stays as a hole.
bool Arena::grow(Bytes size, Lane lane) {
  const Site site = choose_site(size, lane);
  if (!site.gap) return false;
  const Address begin = site.gap->address;
  Address at = begin;
  const Address end = begin + site.need;
  Chunk* gap = site.gap;

  // What is idle elsewhere comes first: the smallest handle that is enough, else the largest ones.
  std::vector<Idle> idle = idle_handles(gap->prev, gap->next);
  std::set<Stream> waited;
  while (at < end && !idle.empty() && gap) {
    auto it = std::lower_bound(idle.begin(), idle.end(), end - at,
                               [](const Idle& i, Bytes need) { return i.size < need; });
    if (it == idle.end() || it->size > gap->size) {
      if (it == idle.begin()) break;
      --it;
    }
    const Bytes bytes = it->size;
    if (waited.insert(it->chunk->lane >> 1).second) driver_.synchronize(it->chunk->lane >> 1);
    gap = map_at(gap, lift(idle, it), bytes, lane);
    at += bytes;
  }

  // Then new memory, with something to spare where that fits.
  while (at < end && gap) {
    const Bytes need = end - at;
    const Bytes room = std::min(gap->size, limit_ > reserved_ ? limit_ - reserved_ : 0);
    Bytes bytes = std::min(std::max(need, least_growth(reserved_)), largest_handle(reserved_));
    if (bytes > room) bytes = std::min(need, room / kPageBytes * kPageBytes);
    if (bytes == 0) break;
    auto handle = driver_.create(bytes);
    if (!handle.ok() && bytes > need) handle = driver_.create(bytes = need);
    if (!handle.ok()) break;
    gap = map_at(gap, *handle, bytes, lane);
    at += bytes;
  }
  if (at > begin) driver_.set_access(begin, at - begin);
  return at >= end;
}

Result<Address> Arena::allocate(Bytes requested, Stream stream) {
  const Bytes size = round_up(requested, kGranule);
  if (base_ == 0) FLATOUT_TRY_STATUS(open_range());
  const Lane lane = lane_of(size, stream);
  Chunk* chunk = best_fit(size, lane);
  if (!chunk) chunk = adopt(size, lane);
  if (!chunk && holds_for_others(lane)) {
    settle(lane);
    chunk = best_fit(size, lane);
  }
  if (!chunk && grow(size, lane)) chunk = best_fit(size, lane);
  if (!chunk) return Error{Code::kFull, fmt::format("no {} bytes on the device", size), ""};
  if (chunk->size > size) free_[chunk->lane].insert(cut(chunk, size));
  chunk->state = State::kLive;
  chunk->lane = lane;
  return live_.add(chunk, requested);
}

Status Arena::free(Address address) {
  FLATOUT_TRY(Chunk* const chunk, live_.remove(address));
  put_free(chunk);
  return {};
}

void Arena::trim() {
  settle(lane_of(1, 0));
  settle(lane_of(kSmallRequest + 1, 0));
  std::vector<Idle> idle = idle_handles(nullptr, nullptr);
  if (idle.empty()) return;
  driver_.synchronize(0);
  while (!idle.empty()) driver_.release(lift(idle, std::prev(idle.end())));
}

PolicyStats Arena::stats() const {
  PolicyStats stats = live_.stats(reserved_);
  for (const auto& [lane, set] : free_)
    if (!set.empty()) stats.largest_free = std::max(stats.largest_free, (*set.rbegin())->size);
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
    if (c->address == upper_ - kPageBytes) continue;  // the wall
    mapped += c->size;
    if (c->state == State::kLive) {
      allocated += c->size;
      FLATOUT_CHECK(live_.holds(c));
    } else {
      ++free_chunks;
      FLATOUT_CHECK(free_.at(c->lane).count(const_cast<Chunk*>(c)) == 1);
      FLATOUT_CHECK(!c->next || c->next->state != State::kFree || c->next->lane != c->lane);
    }
  }
  size_t in_sets = 0;
  for (const auto& [lane, set] : free_) in_sets += set.size();
  Bytes handles = 0;
  for (const auto& [address, mapping] : mappings_) handles += mapping.size;
  FLATOUT_CHECK(in_sets == free_chunks && gaps == gaps_.size() && allocated == live_.allocated());
  FLATOUT_CHECK(mapped == reserved_ && handles == reserved_);
}

}  // namespace flatout::devmem

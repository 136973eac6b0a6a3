#include "devmem/torch_policy.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace flatout::devmem {
namespace {

constexpr Bytes kGranule = 512;
constexpr Bytes kSmallRequest = Bytes{1} << 20;  // the largest that the small pool serves
constexpr Bytes kSmallRegion = Bytes{2} << 20;
constexpr Bytes kLargeRegion = Bytes{20} << 20;
constexpr Bytes kOwnRegion = Bytes{10} << 20;  // from here on a region of its own

Bytes region_size(Bytes size) {
  if (size <= kSmallRequest) return kSmallRegion;
  return size < kOwnRegion ? kLargeRegion : round_up(size, kPageBytes);
}

}  // namespace

TorchPolicy::TorchPolicy(Driver& driver, Bytes limit, TorchOptions options)
    : driver_(driver), limit_(limit), options_(options) {}

TorchPolicy::~TorchPolicy() {
  std::set<Address> regions;
  for (const Chunk& chunk : chunks_.all())
    if (chunk.pool && !chunk.range && !chunk.prev) regions.insert(chunk.address);
  for (const Address address : regions) driver_.free(address);
  for (const auto& [base, range] : ranges_) {
    for (size_t i = 0; i < range.handles.size(); ++i) {
      if (range.handles[i] == 0) continue;
      driver_.unmap(base + i * range.handle_bytes);
      driver_.release(range.handles[i]);
    }
    driver_.unreserve(base);
  }
}

void TorchPolicy::insert_free(Chunk* chunk) {
  chunk->born = chunk->pool->searches;
  chunk->pool->free.insert(chunk);
}

Bytes TorchPolicy::rounded(Bytes size) const {
  if (size < kGranule) return kGranule;
  const uint64_t divisions = options_.roundup_power2_divisions;
  if (divisions > 1 && size > kGranule * divisions) {
    const Bytes floor = std::bit_floor(size);
    if (size == floor) return size;
    const Bytes part = floor / divisions;
    return part == 0 ? floor * 2 : round_up(size, part);
  }
  return round_up(size, kGranule);
}

bool TorchPolicy::should_split(const Chunk* chunk, Bytes size) const {
  const Bytes rest = chunk->size - size;
  if (chunk->pool->small || options_.expandable) return rest >= kGranule;
  return size < options_.max_split_size && rest > kSmallRequest;
}

// The smallest free chunk that holds it. Of expandable ones the unmapped addresses behind a chunk
// count as its size, so that a chunk which could grow is taken last.
TorchPolicy::Chunk* TorchPolicy::find(Pool& pool, Bytes size, Stream stream) {
  if (options_.limited && options_.garbage_collection_threshold > 0) ++pool.searches;
  Chunk probe;
  probe.stream = stream;
  probe.size = size;
  auto it = pool.free.lower_bound(&probe);
  if (it == pool.free.end() || (*it)->stream != stream) return nullptr;
  if ((*it)->range) {
    const auto reach = [](const Chunk* c) {
      return c->size + (c->next && !c->next->mapped ? c->next->size : 0);
    };
    for (auto next = std::next(it);
         next != pool.free.end() && (*next)->stream == stream && reach(*next) < reach(*it); ++next)
      it = next;
  }
  if (size < options_.max_split_size && (*it)->size >= options_.max_split_size) return nullptr;
  if (size >= options_.max_split_size && (*it)->size >= size + kLargeRegion) return nullptr;
  Chunk* chunk = *it;
  pool.free.erase(it);
  return chunk;
}

TorchPolicy::Chunk* TorchPolicy::grow(Pool& pool, Bytes size, Bytes region, Stream stream) {
  if (options_.limited && reserved_ + region > limit_) return nullptr;
  if (options_.expandable) return grow_range(pool, size, stream);
  const auto got = driver_.allocate(region);
  if (!got.ok()) return nullptr;
  reserved_ += region;
  Chunk* chunk = chunks_.make();
  chunk->stream = stream;
  chunk->size = region;
  chunk->address = *got;
  chunk->pool = &pool;
  return chunk;
}

// The lowest run of free and unmapped addresses that is long enough and ends in unmapped ones; else
// a new range.
TorchPolicy::Chunk* TorchPolicy::expandable_candidate(Pool& pool, Bytes size, Stream stream) {
  Chunk probe;
  probe.stream = stream;
  for (auto it = pool.unmapped.lower_bound(&probe);
       it != pool.unmapped.end() && (*it)->stream == stream; ++it) {
    Chunk* first = *it;
    if (first->prev && !first->prev->in_use) first = first->prev;
    Bytes bytes = 0;
    for (const Chunk* c = first; bytes < size && c && !c->in_use; c = c->next) bytes += c->size;
    if (bytes >= size) return first;
  }
  const Bytes handle_bytes = pool.small ? kSmallRegion : kLargeRegion;
  const Bytes total = driver_.total_bytes();
  const Bytes span = round_up(total + total / 8, handle_bytes);
  const auto base = driver_.reserve(span);
  if (!base.ok()) return nullptr;
  Range& range = ranges_[*base] = {*base, handle_bytes, span, stream, {}};
  Chunk* chunk = chunks_.make();
  chunk->stream = stream;
  chunk->size = span;
  chunk->address = *base;
  chunk->pool = &pool;
  chunk->range = &range;
  chunk->mapped = false;
  pool.unmapped.insert(chunk);
  return chunk;
}

TorchPolicy::Chunk* TorchPolicy::grow_range(Pool& pool, Bytes size, Stream stream) {
  Chunk* chunk = expandable_candidate(pool, size, stream);
  if (!chunk) return nullptr;
  if (!chunk->mapped && !map_chunk(chunk, std::min(chunk->size, size))) return nullptr;
  while (chunk->size < size) {  // a free chunk, then an unmapped one
    Chunk* next = chunk->next;
    if (!map_chunk(next, std::min(size - chunk->size, next->size))) return nullptr;
    chunk = next;
  }
  pool.free.erase(chunk);
  return chunk;
}

bool TorchPolicy::map_chunk(Chunk* chunk, Bytes size) {
  Range& range = *chunk->range;
  const size_t begin = (chunk->address - range.base) / range.handle_bytes;
  const size_t end =
      round_up(chunk->address + size - range.base, range.handle_bytes) / range.handle_bytes;
  if (range.handles.size() < end) range.handles.resize(end);
  for (size_t i = begin; i < end; ++i) {
    const auto handle = driver_.create(range.handle_bytes);
    if (!handle.ok()) {
      for (size_t j = begin; j < i; ++j) {
        driver_.release(range.handles[j]);
        range.handles[j] = 0;
      }
      return false;
    }
    range.handles[i] = *handle;
  }
  for (size_t i = begin; i < end; ++i)
    driver_.map(range.base + i * range.handle_bytes, range.handles[i]);
  const Bytes got = (end - begin) * range.handle_bytes;
  driver_.set_access(chunk->address, got);

  Pool& pool = *chunk->pool;
  pool.unmapped.erase(chunk);
  chunk->mapped = true;
  if (got < chunk->size) {
    Chunk* rest = chunks_.make();
    *rest = *chunk;
    rest->mapped = false;
    rest->size -= got;
    rest->address += got;
    rest->prev = chunk;
    if (rest->next) rest->next->prev = rest;
    chunk->next = rest;
    chunk->size = got;
    pool.unmapped.insert(rest);
  }
  try_merge(chunk, chunk->prev);
  try_merge(chunk, chunk->next);
  insert_free(chunk);
  reserved_ += got;
  return true;
}

void TorchPolicy::unmap_chunk(Chunk* chunk) {
  Range& range = *chunk->range;
  const size_t begin =
      round_up(chunk->address - range.base, range.handle_bytes) / range.handle_bytes;
  const size_t end = (chunk->address + chunk->size - range.base) / range.handle_bytes;
  if (begin >= end) return;
  driver_.synchronize(range.stream);
  for (size_t i = begin; i < end; ++i) {
    driver_.unmap(range.base + i * range.handle_bytes);
    driver_.release(range.handles[i]);
    range.handles[i] = 0;
  }
  while (!range.handles.empty() && range.handles.back() == 0) range.handles.pop_back();

  Pool& pool = *chunk->pool;
  pool.free.erase(chunk);
  const Address low = range.base + begin * range.handle_bytes;
  const Address high = range.base + end * range.handle_bytes;
  const auto part = [&](Address from, Address to, Chunk* prev, Chunk* next) {
    Chunk* p = chunks_.make();
    *p = *chunk;
    p->address = from;
    p->size = to - from;
    p->prev = prev;
    p->next = next;
    if (prev) prev->next = p;
    if (next) next->prev = p;
    insert_free(p);
  };
  const Address begin_of_chunk = chunk->address, end_of_chunk = chunk->address + chunk->size;
  if (begin_of_chunk < low) part(begin_of_chunk, low, chunk->prev, chunk);
  if (high < end_of_chunk) part(high, end_of_chunk, chunk, chunk->next);
  chunk->address = low;
  chunk->size = high - low;
  chunk->mapped = false;
  try_merge(chunk, chunk->prev);
  try_merge(chunk, chunk->next);
  pool.unmapped.insert(chunk);
  reserved_ -= high - low;
}

bool TorchPolicy::try_merge(Chunk* into, Chunk* other) {
  if (!other || other->in_use || other->mapped != into->mapped) return false;
  Pool& pool = *into->pool;
  if (other->mapped) {
    pool.free.erase(other);
  } else {
    pool.unmapped.erase(other);
  }
  if (into->prev == other) {
    into->address = other->address;
    into->prev = other->prev;
    if (into->prev) into->prev->next = into;
  } else {
    into->next = other->next;
    if (into->next) into->next->prev = into;
  }
  into->size += other->size;
  chunks_.drop(other);
  return true;
}

void TorchPolicy::collect_garbage() {
  const auto threshold =
      static_cast<Bytes>(options_.garbage_collection_threshold * static_cast<double>(limit_));
  if (reserved_ <= threshold) return;
  const Bytes target = reserved_ - threshold;
  const auto age = [](const Chunk* c) { return static_cast<double>(c->pool->searches - c->born); };
  double total_age = 0;
  int freeable = 0;
  for (const Chunk* chunk : large_.free) {
    if (chunk->is_split() || chunk->range) continue;
    total_age += age(chunk);
    ++freeable;
  }
  Bytes reclaimed = 0;
  for (bool freed = true; reclaimed < target && freed && freeable > 0;) {
    const double oldest_part = total_age / freeable;
    freed = false;
    for (auto it = large_.free.begin(); it != large_.free.end();) {
      Chunk* chunk = *it++;
      if (chunk->is_split() || chunk->range || age(chunk) < oldest_part) continue;
      freed = true;
      reclaimed += chunk->size;
      total_age -= age(chunk);
      --freeable;
      release(chunk);
    }
  }
}

// Chunks that may not be split are given back first: one that is large enough, else the largest
// until the sum is.
bool TorchPolicy::release_oversize(Pool& pool, Bytes size, Stream stream) {
  const Bytes oversize = options_.max_split_size;
  if (oversize == std::numeric_limits<Bytes>::max()) return false;
  Chunk probe;
  probe.stream = stream;
  probe.size = std::max(size, oversize);
  auto it = pool.free.lower_bound(&probe);
  if (it != pool.free.end() && (*it)->stream == stream) {
    release(*it);
    return true;
  }
  Bytes released = 0;
  while (released < probe.size && it != pool.free.begin()) {
    Chunk* chunk = *std::prev(it);
    if (chunk->size < oversize || chunk->stream != stream) break;
    released += chunk->size;
    release(chunk);
    it = pool.free.lower_bound(&probe);
  }
  return released >= probe.size;
}

void TorchPolicy::release(Chunk* chunk) {
  driver_.free(chunk->address);
  reserved_ -= chunk->size;
  chunk->pool->free.erase(chunk);
  chunks_.drop(chunk);
}

void TorchPolicy::release_free(Pool& pool) {
  std::vector<Chunk*> expandable;
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Chunk* chunk = *it++;
    if (chunk->range) {
      expandable.push_back(chunk);
    } else if (!chunk->is_split()) {
      release(chunk);
    }
  }
  for (Chunk* chunk : expandable) {
    unmap_chunk(chunk);
    if (chunk->is_split() || chunk->mapped) continue;
    const Address base = chunk->range->base;
    pool.unmapped.erase(chunk);
    chunks_.drop(chunk);
    driver_.unreserve(base);
    ranges_.erase(base);
  }
}

void TorchPolicy::trim() {
  release_free(large_);
  release_free(small_);
}

Result<Address> TorchPolicy::allocate(Bytes requested, Stream stream) {
  const Bytes size = rounded(requested);
  Pool& pool = size <= kSmallRequest ? small_ : large_;
  const Bytes region = region_size(size);
  Chunk* chunk = find(pool, size, stream);
  if (!chunk) {
    if (options_.limited && options_.garbage_collection_threshold > 0) collect_garbage();
    chunk = grow(pool, size, region, stream);
    if (!chunk && release_oversize(pool, size, stream)) chunk = grow(pool, size, region, stream);
    if (!chunk) {
      trim();
      chunk = grow(pool, size, region, stream);
    }
  }
  if (!chunk) return Error{Code::kFull, fmt::format("no {} bytes on the device", size), ""};

  if (should_split(chunk, size)) {
    Chunk* rest = chunk;
    chunk = chunks_.make();
    *chunk = *rest;
    chunk->size = size;
    if (chunk->prev) chunk->prev->next = chunk;
    chunk->next = rest;
    rest->prev = chunk;
    rest->address += size;
    rest->size -= size;
    insert_free(rest);
  }
  chunk->in_use = true;
  return in_use_.add(chunk, requested);
}

Status TorchPolicy::free(Address address) {
  FLATOUT_TRY(Chunk* const chunk, in_use_.remove(address));
  chunk->in_use = false;
  Chunk *prev = chunk->prev, *next = chunk->next;
  try_merge(chunk, prev);
  try_merge(chunk, next);
  insert_free(chunk);
  return {};
}

PolicyStats TorchPolicy::stats() const {
  PolicyStats stats = in_use_.stats(reserved_);
  for (const Pool* pool : {&small_, &large_})
    for (const Chunk* chunk : pool->free)
      stats.largest_free = std::max(stats.largest_free, chunk->size);
  return stats;
}

void TorchPolicy::check(const Pool& pool) const {
  for (const Chunk* chunk : pool.free) {
    FLATOUT_CHECK(!chunk->in_use && chunk->mapped && chunk->pool == &pool);
    FLATOUT_CHECK(!chunk->prev || chunk->prev->in_use || !chunk->prev->mapped);
    FLATOUT_CHECK(!chunk->next || chunk->next->in_use || !chunk->next->mapped);
  }
  for (const Chunk* chunk : pool.unmapped) FLATOUT_CHECK(!chunk->in_use && !chunk->mapped);
}

void TorchPolicy::check() const {
  check(small_);
  check(large_);
  Bytes reserved = 0, allocated = 0;
  for (const Chunk& chunk : chunks_.all()) {
    if (!chunk.pool) continue;  // a spare one
    FLATOUT_CHECK(!chunk.next || chunk.next->address == chunk.address + chunk.size);
    FLATOUT_CHECK(!chunk.next || chunk.next->prev == &chunk);
    if (chunk.mapped) reserved += chunk.size;
    if (chunk.in_use) allocated += chunk.size;
  }
  FLATOUT_CHECK(reserved == reserved_ && allocated == in_use_.allocated());
}

}  // namespace flatout::devmem

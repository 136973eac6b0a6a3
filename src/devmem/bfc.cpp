#include "devmem/bfc.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace flatout::devmem {

Bfc::Bfc(Driver& driver, Bytes limit, BfcOptions options)
    : driver_(driver), limit_(limit), options_(options) {
  const Bytes first = options.allow_growth ? std::min(limit, Bytes{2} << 20) : limit;
  region_bytes_ = round_up(first, kGranule);
  max_waste_ = options.fragmentation_fraction > 0
                   ? static_cast<Bytes>(options.fragmentation_fraction * static_cast<double>(limit))
                   : Bytes{128} << 20;
}

Bfc::~Bfc() {
  for (const auto& [address, region] : regions_) driver_.free(address);
}

int Bfc::bin_of(Bytes size) {
  const int log2 = std::bit_width(std::max(size, kGranule) / kGranule) - 1;
  return std::min(log2, kBins - 1);
}

void Bfc::insert_free(Chunk* chunk) {
  bins_[bin_of(chunk->size)].insert(chunk);
  chunk->binned = true;
}

void Bfc::remove_free(Chunk* chunk) {
  bins_[bin_of(chunk->size)].erase(chunk);
  chunk->binned = false;
}

void Bfc::split(Chunk* chunk, Bytes size) {
  Chunk* rest = chunks_.make();
  rest->address = chunk->address + size;
  rest->size = chunk->size - size;
  rest->prev = chunk;
  rest->next = chunk->next;
  if (rest->next) rest->next->prev = rest;
  chunk->next = rest;
  chunk->size = size;
  insert_free(rest);
}

void Bfc::merge(Chunk* low, Chunk* high) {
  low->size += high->size;
  low->next = high->next;
  if (low->next) low->next->prev = low;
  chunks_.drop(high);
}

Bfc::Chunk* Bfc::coalesce(Chunk* chunk) {
  if (Chunk* next = chunk->next; next && !next->in_use) {
    remove_free(next);
    merge(chunk, next);
  }
  if (Chunk* prev = chunk->prev; prev && !prev->in_use) {
    remove_free(prev);
    merge(prev, chunk);
    return prev;
  }
  return chunk;
}

Bfc::Chunk* Bfc::find(Bytes rounded, Bytes size) {
  Chunk probe;
  probe.size = rounded;
  for (int b = bin_of(rounded); b < kBins; ++b) {
    const auto it = bins_[b].lower_bound(&probe);
    if (it == bins_[b].end()) continue;
    Chunk* chunk = *it;
    remove_free(chunk);
    const Bytes waste = chunk->size - rounded;
    if (chunk->size >= rounded * 2 || waste >= max_waste_) split(chunk, rounded);
    chunk->in_use = true;
    in_use_.add(chunk, size);
    return chunk;
  }
  return nullptr;
}

// The region's size doubles until it holds the request; one that held it already doubles
// afterwards. Where the device has less left, 9/10 of it is asked for again and again.
bool Bfc::extend(Bytes rounded) {
  const Bytes available = (limit_ - pool_) / kGranule * kGranule;
  if (rounded > available) return false;
  const bool held = rounded <= region_bytes_;
  while (rounded > region_bytes_) region_bytes_ *= 2;
  Bytes bytes = std::min(region_bytes_, available);
  auto got = driver_.allocate(bytes);
  while (!got.ok()) {
    // In the original the factor is a float: the product must round as there.
    Bytes less = round_up(static_cast<Bytes>(static_cast<float>(bytes) * 0.9F), kGranule);
    if (less >= bytes) less = bytes - kGranule;
    bytes = less;
    if (bytes < rounded) return false;
    got = driver_.allocate(bytes);
  }
  if (held && region_bytes_ < limit_) region_bytes_ *= 2;  // from there on it changes nothing
  pool_ += bytes;
  Chunk* chunk = chunks_.make();
  chunk->address = *got;
  chunk->size = bytes;
  regions_.emplace(*got, Region{bytes, chunk});
  insert_free(chunk);
  return true;
}

// Drops regions that hold nothing, if with them a region for the request could be had.
bool Bfc::give_back_free_regions(Bytes rounded) {
  if (!options_.garbage_collection) return false;
  std::vector<Address> idle;
  Bytes bytes = 0;
  for (const auto& [address, region] : regions_) {
    const Chunk* chunk = region.first;
    while (chunk && !chunk->in_use) chunk = chunk->next;
    if (chunk) continue;
    idle.push_back(address);
    bytes += region.size;
  }
  if (bytes == 0 || rounded > limit_ - pool_ + bytes) return false;
  for (const Address address : idle) {
    const auto it = regions_.find(address);
    for (Chunk* chunk = it->second.first; chunk;) {
      Chunk* next = chunk->next;
      remove_free(chunk);
      chunks_.drop(chunk);
      chunk = next;
    }
    pool_ -= it->second.size;
    driver_.free(address);
    regions_.erase(it);
  }
  return true;
}

Result<Address> Bfc::allocate(Bytes size, Stream) {
  const Bytes rounded = round_up(size, kGranule);
  Chunk* chunk = find(rounded, size);
  if (!chunk && extend(rounded)) chunk = find(rounded, size);
  if (!chunk && give_back_free_regions(rounded) && extend(rounded)) chunk = find(rounded, size);
  if (chunk) return chunk->address;
  return Error{Code::kFull, fmt::format("no {} bytes in the arena", rounded), ""};
}

Status Bfc::free(Address address) {
  FLATOUT_TRY(Chunk* const chunk, in_use_.remove(address));
  chunk->in_use = false;
  insert_free(coalesce(chunk));
  return {};
}

PolicyStats Bfc::stats() const {
  PolicyStats stats = in_use_.stats(pool_);
  for (const auto& bin : bins_)
    if (!bin.empty()) stats.largest_free = (*bin.rbegin())->size;
  return stats;
}

void Bfc::check() const {
  size_t free_chunks = 0, binned = 0;
  Bytes pool = 0, allocated = 0;
  for (const auto& bin : bins_) binned += bin.size();
  for (const auto& [address, region] : regions_) {
    Address at = address;
    for (const Chunk* chunk = region.first; chunk; chunk = chunk->next) {
      FLATOUT_CHECK(chunk->address == at && chunk->size > 0 && chunk->size % kGranule == 0);
      FLATOUT_CHECK(!chunk->next || chunk->next->prev == chunk);
      FLATOUT_CHECK(chunk->binned != chunk->in_use);
      if (chunk->in_use) {
        FLATOUT_CHECK(in_use_.holds(chunk) && chunk->requested <= chunk->size);
        allocated += chunk->size;
      } else {
        ++free_chunks;
        FLATOUT_CHECK(bins_[bin_of(chunk->size)].count(const_cast<Chunk*>(chunk)) == 1);
        FLATOUT_CHECK(!chunk->next || chunk->next->in_use);
      }
      at += chunk->size;
    }
    FLATOUT_CHECK(at == address + region.size);
    pool += region.size;
  }
  FLATOUT_CHECK(free_chunks == binned && pool == pool_ && allocated == in_use_.allocated());
}

}  // namespace flatout::devmem

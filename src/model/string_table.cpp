#include "model/string_table.h"

#include <algorithm>
#include <cstring>

namespace flatout::model {
namespace {

constexpr size_t kBlock = 64 << 10;

// Eight bytes at a time in two lanes, which the processor does at once; multiply and fold as in
// wyhash. Not for hostile keys in a server: a trace that collides on purpose makes its own import
// slow.
uint64_t mix(uint64_t h, uint64_t word) {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(h ^ word) * 0xA0761D6478BD642Full;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t word_at(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

uint32_t hash_of(std::string_view text) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ text.size(), other = 0xE7037ED1A0B428DBull;
  const char* p = text.data();
  size_t left = text.size();
  for (; left >= 16; p += 16, left -= 16) {
    h = mix(h, word_at(p));
    other = mix(other, word_at(p + 8));
  }
  if (left >= 8) {
    h = mix(h, word_at(p));
    p += 8;
    left -= 8;
  }
  if (left > 0) {
    uint64_t word = 0;
    std::memcpy(&word, p, left);
    other = mix(other, word ^ (uint64_t{left} << 56));
  }
  h = mix(h, other);
  return static_cast<uint32_t>(h ^ (h >> 32));
}

}  // namespace

size_t StringTable::slot_of(std::string_view text, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id != kUnknown &&
         (slots_[at].hash != hash || strings_[slots_[at].id] != text)) {
    at = (at + 1) & mask;
  }
  return at;
}

void StringTable::grow() {
  std::vector<Slot> old(std::max<size_t>(256, slots_.size() * 2));
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id == kUnknown) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].id != kUnknown) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

std::string_view StringTable::keep(std::string_view text) {
  if (text.empty()) return {};
  if (text.size() > block_left_) {
    const size_t size = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(size));
    block_next_ = blocks_.back().get();
    block_left_ = size;
    block_bytes_ += size;
  }
  std::memcpy(block_next_, text.data(), text.size());
  const std::string_view kept(block_next_, text.size());
  block_next_ += text.size();
  block_left_ -= text.size();
  return kept;
}

StringId StringTable::intern(std::string_view text) {
  if ((strings_.size() + 1) * 2 > slots_.size()) grow();
  const uint32_t hash = hash_of(text);
  Slot& slot = slots_[slot_of(text, hash)];
  if (slot.id == kUnknown) {
    slot = {hash, static_cast<StringId>(strings_.size())};
    strings_.push_back(keep(text));
  }
  return slot.id;
}

StringId StringTable::find(std::string_view text) const {
  return slots_[slot_of(text, hash_of(text))].id;
}

size_t StringTable::bytes() const {
  return block_bytes_ + strings_.capacity() * sizeof(std::string_view) +
         slots_.capacity() * sizeof(Slot);
}

}  // namespace flatout::model

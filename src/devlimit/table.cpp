#include "devlimit/table.h"

#include <sys/mman.h>

#include "devlimit/record.h"

namespace flatout::devlimit {
namespace {

uint64_t hash_of(Kind kind, uint64_t key) {
  uint64_t h = (key ^ (static_cast<uint64_t>(kind) << 56)) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

// Memory of its own: mappings are of physical memory, graphs and guesses are charges.
bool is_memory(Kind kind) {
  return kind == Kind::kMemory || kind == Kind::kPooled || kind == Kind::kArray ||
         kind == Kind::kExternal;
}
uint64_t id_of(const Entry& entry) { return entry.key ^ (static_cast<uint64_t>(entry.kind) << 56); }

Entry* entries_from_system(uint64_t count) {
  void* const memory = ::mmap(nullptr, count * sizeof(Entry), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Entry*>(memory);  // zeros: kNone
}

}  // namespace

Entry* Table::slot_of(Kind kind, uint64_t key) {
  if (capacity_ == 0) return nullptr;
  for (uint64_t i = hash_of(kind, key);; ++i) {
    Entry& entry = entries_[i & (capacity_ - 1)];
    if (entry.kind == Kind::kNone) return nullptr;
    if (entry.kind == kind && entry.key == key) return &entry;
  }
}

bool Table::grow() {
  const uint64_t capacity = capacity_ == 0          ? 1024
                            : live_ * 4 > capacity_ ? capacity_ * 2
                                                    : capacity_;
  Entry* const old = entries_;
  const uint64_t old_capacity = capacity_;
  Entry* const fresh = entries_from_system(capacity);
  if (fresh == nullptr) return false;
  entries_ = fresh;
  capacity_ = capacity;
  filled_ = live_ = 0;
  for (uint64_t i = 0; i < old_capacity; ++i)
    if (old[i].kind != Kind::kNone && old[i].kind != Kind::kGone) insert(old[i]);
  if (old != nullptr) ::munmap(old, old_capacity * sizeof(Entry));
  return true;
}

bool Table::put(const Entry& entry) {
  if (!insert(entry)) return false;
  if (is_memory(entry.kind)) record_taken(entry.device, id_of(entry), entry.bytes);
  return true;
}

bool Table::insert(const Entry& entry) {
  if (filled_ * 2 >= capacity_ && !grow()) return false;
  for (uint64_t i = hash_of(entry.kind, entry.key);; ++i) {
    Entry& place = entries_[i & (capacity_ - 1)];
    if (place.kind != Kind::kNone) continue;
    place = entry;
    ++filled_;
    ++live_;
    return true;
  }
}

Entry* Table::find(Kind kind, uint64_t key) { return slot_of(kind, key); }

Entry Table::take(Kind kind, uint64_t key) {
  Entry* const entry = slot_of(kind, key);
  if (entry == nullptr) return {};
  const Entry out = *entry;
  if (is_memory(kind)) record_freed(out.device, id_of(out));
  *entry = {};
  entry->kind = Kind::kGone;
  --live_;
  return out;
}

Entry* Table::mapping_within(uint64_t begin, uint64_t end) {
  if (Entry* const there = slot_of(Kind::kMapping, begin)) return there;
  for (uint64_t i = 0; i < capacity_; ++i) {
    Entry& entry = entries_[i];
    if (entry.kind == Kind::kMapping && entry.key >= begin && entry.key < end) return &entry;
  }
  return nullptr;
}

uint64_t Table::forget_memory_of(const void* context, int device) {
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < capacity_; ++i) {
    Entry& entry = entries_[i];
    const bool of_context =
        entry.kind == Kind::kMemory || entry.kind == Kind::kArray || entry.kind == Kind::kExternal;
    if (!of_context || entry.device != device || entry.object != context) continue;
    bytes += entry.bytes;
    record_freed(entry.device, id_of(entry));
    entry = {};
    entry.kind = Kind::kGone;
    --live_;
  }
  return bytes;
}

Entry* Table::mapping_around(uint64_t address) {
  for (uint64_t i = 0; i < capacity_; ++i) {
    Entry& entry = entries_[i];
    if (entry.kind == Kind::kMapping && address - entry.key < entry.bytes) return &entry;
  }
  return nullptr;
}

}  // namespace flatout::devlimit

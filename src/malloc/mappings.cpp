#include "malloc/mappings.h"

#include <cstring>

#include "malloc/arena.h"
#include "malloc/lock.h"
#include "malloc/os.h"
#include "malloc/text.h"

namespace flatout::malloc {
namespace {

constexpr unsigned kMost = 16384;
constexpr size_t kLine = 512;  // a longer one is left out

struct Mapping {
  Mapping* next;
  size_t size;
  char line[];
};

constinit Lock g_lock;
constinit Arena g_arena;
Mapping* g_first = nullptr;
unsigned g_count = 0;

void remember(const char* line, size_t size) {
  if (std::memchr(line, '/', size) == nullptr) return;  // no file's
  for (const Mapping* m = g_first; m != nullptr; m = m->next) {
    if (m->size == size && std::memcmp(m->line, line, size) == 0) return;
  }
  auto* const m =
      g_count < kMost ? static_cast<Mapping*>(g_arena.take(sizeof(Mapping) + size + 1)) : nullptr;
  if (m == nullptr) return;
  std::memcpy(m->line, line, size);
  m->size = size;
  m->next = g_first;
  g_first = m;
  ++g_count;
}

}  // namespace

void remember_mappings() {
  const LockHolder hold(g_lock);
  const int from = os_open("/proc/self/maps");
  char block[4096], line[kLine];
  size_t used = 0;
  bool whole = true;
  for (ssize_t got; from >= 0 && (got = os_read(from, block, sizeof block)) > 0;) {
    for (ssize_t i = 0; i < got; ++i) {
      if (block[i] == '\n') {
        if (whole) remember(line, used);
        used = 0;
        whole = true;
      } else if (used == kLine) {
        whole = false;
      } else {
        line[used++] = block[i];
      }
    }
  }
  if (from >= 0) os_close(from);
}

void write_mappings(Text& out) {
  const LockHolder hold(g_lock);
  for (const Mapping* m = g_first; m != nullptr; m = m->next)
    out.add("was ").add(m->line).add("\n");
}

void lock_mappings() { g_lock.lock(); }
void unlock_mappings() { g_lock.unlock(); }
void reset_mappings_lock() { g_lock.reset(); }

}  // namespace flatout::malloc

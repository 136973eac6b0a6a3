/* Strings by id; see strings.h. Open addressing over texts in an arena, both of fixed size. */
#include "agent/strings.h"

#include <stddef.h>
#include <string.h>

#define SLOTS 2048u
#define ARENA (128u << 10)
#define LONGEST 255u
#define PROBES 64u /* then the table counts as full */

static char arena[ARENA];
static uint32_t arena_used;
static uint32_t slots[SLOTS]; /* place in the arena + 1 */
static uint32_t sent[SLOTS];  /* generation in which it was sent; 0: never */

static uint32_t hash(const char* text, size_t length) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < length; ++i) h = (h ^ (unsigned char)text[i]) * 16777619u;
  return h;
}

static int equal(uint32_t place, const char* text, size_t length) {
  const char* have = arena + place - 1;
  return strlen(have) == length && memcmp(have, text, length) == 0;
}

uint32_t strings_intern(const char* text) {
  if (text == NULL || *text == 0) return 0;
  const size_t length = strnlen(text, LONGEST);
  const uint32_t first = hash(text, length) % SLOTS;
  uint32_t mine = 0;
  for (uint32_t i = 0; i < PROBES; ++i) {
    const uint32_t slot = (first + i) % SLOTS;
    uint32_t place = __atomic_load_n(&slots[slot], __ATOMIC_ACQUIRE);
    if (place == 0) {
      if (mine == 0) {
        uint32_t at = __atomic_load_n(&arena_used, __ATOMIC_RELAXED);
        do {
          if (at + length + 1 > ARENA) return 0;
        } while (!__atomic_compare_exchange_n(&arena_used, &at, at + (uint32_t)length + 1, 1,
                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        memcpy(arena + at, text, length); /* the zero after it is there already */
        mine = at + 1;
      }
      if (__atomic_compare_exchange_n(&slots[slot], &place, mine, 0, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE))
        return slot + 1;
      /* Another thread took the slot; `place` is what it put there. */
    }
    if (equal(place, text, length)) return slot + 1;
  }
  return 0;
}

const char* strings_text(uint32_t id) {
  if (id == 0 || id > SLOTS) return NULL;
  const uint32_t place = __atomic_load_n(&slots[id - 1], __ATOMIC_ACQUIRE);
  return place == 0 ? NULL : arena + place - 1;
}

int strings_need_sending(uint32_t id, uint32_t generation) {
  if (id == 0 || id > SLOTS) return 0;
  if (__atomic_load_n(&sent[id - 1], __ATOMIC_RELAXED) == generation) return 0;
  return __atomic_exchange_n(&sent[id - 1], generation, __ATOMIC_RELAXED) != generation;
}

void strings_not_sent(uint32_t id) { __atomic_store_n(&sent[id - 1], 0, __ATOMIC_RELAXED); }

/* The ring between agents and the recorder; see ring.h for the contract.
 *
 * Positions (`head`, `tail`) count bytes since the beginning and never wrap; the place in the data
 * is position modulo size, a power of two. A packet never wraps round the end: a pad fills the
 * rest. All data that is not a packet is zero: the reader clears what it has read before it gives
 * it back. The first 8 bytes of a packet {size, type, flags} are one atomic word: zero while nobody
 * has been there, size with bit 0 set while it is being filled, plain size once it is whole. Since
 * that word is written right after the reservation, a writer that dies leaves either a marked
 * packet or zeros up to the next word that is not zero; both can be stepped over. */
#include "wire/ring.h"

#include <string.h>

#define RING_MAGIC 0x474E5246u /* "FRNG" */
#define RING_VERSION 1u
#define BUSY 1u
#define MIN_DATA 4096u

struct flatout_ring {
  uint32_t magic, version;
  uint64_t data_size;
  uint64_t dropped;
  uint64_t unused[5];
  uint64_t head; /* written by agents; a cache line of its own, as `tail` */
  uint64_t unused_head[7];
  uint64_t tail; /* written by the recorder */
  uint64_t unused_tail[7];
  /* data follows */
};

static unsigned char* data_of(const struct flatout_ring* ring) {
  return (unsigned char*)(uintptr_t)(ring + 1);
}

static uint64_t first_word(uint32_t size, const struct flatout_packet* header) {
  return size | (uint64_t)header->type << 32 | (uint64_t)header->flags << 48;
}

bool flatout_ring_init(void* memory, size_t bytes) {
  if (memory == NULL || bytes < sizeof(struct flatout_ring) + MIN_DATA) return false;
  size_t size = MIN_DATA;
  while (size <= (bytes - sizeof(struct flatout_ring)) / 2) size *= 2;
  memset(memory, 0, bytes);
  struct flatout_ring* ring = (struct flatout_ring*)memory;
  ring->version = RING_VERSION;
  ring->data_size = size;
  __atomic_store_n(&ring->magic, RING_MAGIC, __ATOMIC_RELEASE);
  return true;
}

struct flatout_ring* flatout_ring_open(void* memory, size_t bytes) {
  if (memory == NULL || bytes < sizeof(struct flatout_ring) + MIN_DATA) return NULL;
  struct flatout_ring* ring = (struct flatout_ring*)memory;
  if (__atomic_load_n(&ring->magic, __ATOMIC_ACQUIRE) != RING_MAGIC) return NULL;
  const uint64_t size = ring->data_size;
  if (ring->version != RING_VERSION || size < MIN_DATA || (size & (size - 1)) != 0) return NULL;
  if (size > bytes - sizeof(struct flatout_ring)) return NULL;
  return ring;
}

static bool drop(struct flatout_ring* ring, uint32_t packets) {
  __atomic_fetch_add(&ring->dropped, packets, __ATOMIC_RELAXED);
  return false;
}

static uint64_t packet_size(uint64_t payload) {
  return (sizeof(struct flatout_packet) + payload + 7) & ~(uint64_t)7;
}

/* Room for `size` bytes in a row, whose first word is marked as that of a packet with this header
 * which is being filled; NULL if there is none. */
__attribute__((hot)) static unsigned char* reserve(struct flatout_ring* ring, uint64_t size,
                                                   uint64_t word) {
  const uint64_t data_size = ring->data_size;
  if (size > data_size / 2) return NULL;
  uint64_t head, offset, pad;
  do {
    /* The tail first: then head is never behind it, and the room is at worst underestimated. */
    const uint64_t taken = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
    offset = head & (data_size - 1);
    pad = data_size - offset < size ? data_size - offset : 0;
    if (head + pad + size - taken > data_size) return NULL;
  } while (!__atomic_compare_exchange_n(&ring->head, &head, head + pad + size, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));

  unsigned char* data = data_of(ring);
  unsigned char* at = data + (pad != 0 ? 0 : offset);
  __atomic_store_n((uint64_t*)(void*)at, word | BUSY, __ATOMIC_RELEASE);
  if (pad != 0) {
    const struct flatout_packet padding = {0};
    __atomic_store_n((uint64_t*)(void*)(data + offset), first_word((uint32_t)pad, &padding),
                     __ATOMIC_RELEASE);
  }
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  return at;
}

bool flatout_ring_write(struct flatout_ring* ring, const struct flatout_packet* header,
                        const void* payload, size_t payload_size, const void* tail,
                        size_t tail_size) {
  if (payload_size > FLATOUT_RING_MAX_PACKET || tail_size > FLATOUT_RING_MAX_PACKET)
    return drop(ring, 1);
  const uint64_t size = packet_size(payload_size + tail_size);
  if (size > FLATOUT_RING_MAX_PACKET) return drop(ring, 1);
  const uint64_t word = first_word((uint32_t)size, header);
  unsigned char* at = reserve(ring, size, word);
  if (at == NULL) return drop(ring, 1);
  memcpy(at + 8, (const unsigned char*)header + 8, sizeof *header - 8);
  if (payload_size != 0) memcpy(at + sizeof *header, payload, payload_size);
  if (tail_size != 0) memcpy(at + sizeof *header + payload_size, tail, tail_size);
  __atomic_store_n((uint64_t*)(void*)at, word, __ATOMIC_RELEASE);
  return true;
}

/* By words, which compilers do not turn into a call of memcpy(): its page of libc is a cold one.
 * `to` is aligned, as all in the ring. */
static inline void copy_payload(unsigned char* to, const unsigned char* from, size_t size) {
  size_t done = 0;
  for (; size - done >= 8; done += 8) {
    uint64_t word;
    memcpy(&word, from + done, 8);
    __atomic_store_n((uint64_t*)(void*)(to + done), word, __ATOMIC_RELAXED);
  }
  for (; done < size; ++done) __atomic_store_n(to + done, from[done], __ATOMIC_RELAXED);
}

__attribute__((hot)) bool flatout_ring_write_many(struct flatout_ring* ring,
                                                  const struct flatout_packet* header,
                                                  const void* payloads, size_t payload_size,
                                                  uint32_t count) {
  if (count == 0) return true;
  if (payload_size > FLATOUT_RING_MAX_PACKET) return drop(ring, count);
  const uint64_t size = packet_size(payload_size);
  if (count * size > FLATOUT_RING_MAX_PACKET) return drop(ring, count);
  const uint64_t word = first_word((uint32_t)size, header);
  unsigned char* at = reserve(ring, count * size, word);
  if (at == NULL) return drop(ring, count);
  const unsigned char* payload = (const unsigned char*)payloads;
  for (uint32_t i = 0; i < count; ++i, at += size, payload += payload_size) {
    memcpy(at + 8, (const unsigned char*)header + 8, sizeof *header - 8);
    copy_payload(at + sizeof *header, payload, payload_size);
    __atomic_store_n((uint64_t*)(void*)at, word, __ATOMIC_RELEASE);
  }
  return true;
}

uint64_t flatout_ring_dropped(const struct flatout_ring* ring) {
  return __atomic_load_n(&ring->dropped, __ATOMIC_RELAXED);
}

bool flatout_ring_reader_open(struct flatout_ring_reader* reader, void* memory, size_t bytes) {
  struct flatout_ring* ring = flatout_ring_open(memory, bytes);
  if (ring == NULL) return false;
  const uint64_t size = ring->data_size;
  const uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  /* Read once more what the checks rested on: the other side could have changed it since. */
  if (size < MIN_DATA || (size & (size - 1)) != 0 || (tail & 7) != 0) return false;
  if (size > bytes - sizeof(struct flatout_ring)) return false;
  reader->ring = ring;
  reader->data_size = size;
  reader->tail = tail;
  return true;
}

static unsigned char* at_tail(const struct flatout_ring_reader* reader) {
  return data_of(reader->ring) + (reader->tail & (reader->data_size - 1));
}

static uint64_t word_at(const unsigned char* at) {
  return __atomic_load_n((const uint64_t*)(const void*)at, __ATOMIC_ACQUIRE);
}

static void release(struct flatout_ring_reader* reader, uint64_t size) {
  memset(at_tail(reader), 0, size);
  reader->tail += size;
  __atomic_store_n(&reader->ring->tail, reader->tail, __ATOMIC_RELEASE);
}

/* Bytes reserved and not yet read, or -1 if head makes no sense. */
static int64_t pending(const struct flatout_ring_reader* reader) {
  const uint64_t used = __atomic_load_n(&reader->ring->head, __ATOMIC_ACQUIRE) - reader->tail;
  return used > reader->data_size || (used & 7) != 0 ? -1 : (int64_t)used;
}

static bool size_fits(const struct flatout_ring_reader* reader, uint64_t size, int64_t used) {
  const uint64_t to_end = reader->data_size - (reader->tail & (reader->data_size - 1));
  return size != 0 && (size & 7) == 0 && size <= (uint64_t)used && size <= to_end;
}

long flatout_ring_read(struct flatout_ring_reader* reader, void* out, size_t capacity) {
  for (;;) {
    const int64_t used = pending(reader);
    if (used <= 0) return (long)used;
    const uint64_t word = word_at(at_tail(reader));
    const uint32_t size = (uint32_t)word;
    if (word == 0 || (size & BUSY) != 0) return 0;
    if (!size_fits(reader, size, used)) return -1;
    if ((uint16_t)(word >> 32) == FLATOUT_PACKET_PAD) {
      release(reader, size);
      continue;
    }
    if (size < sizeof(struct flatout_packet) || size > capacity) return -1;
    memcpy(out, &word, sizeof word);
    memcpy((unsigned char*)out + 8, at_tail(reader) + 8, size - 8);
    release(reader, size);
    return (long)size;
  }
}

bool flatout_ring_skip(struct flatout_ring_reader* reader) {
  const int64_t used = pending(reader);
  if (used <= 0) return false;
  const uint64_t word = word_at(at_tail(reader));
  if (word != 0) {
    const uint32_t size = (uint32_t)word & ~BUSY;
    if (((uint32_t)word & BUSY) == 0 || !size_fits(reader, size, used)) return false;
    release(reader, size);
    return true;
  }
  /* Nothing was written at all: it ends where the next packet begins, at the latest at `used`. */
  uint64_t size = 0;
  while (size < (uint64_t)used && word_at(at_tail(reader)) == 0) {
    reader->tail += 8;
    size += 8;
  }
  __atomic_store_n(&reader->ring->tail, reader->tail, __ATOMIC_RELEASE);
  return true;
}

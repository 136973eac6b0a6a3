/* The ring shared by an agent (many writing threads) and the recorder (one reader).
 * Reserve, fill, commit: a write makes no system call and never waits; a full ring drops the packet
 * and counts it. The reader copies a packet before it trusts any length in it, and keeps its own
 * place and bounds outside the shared memory, so a lying writer can only spoil its own packets. */
#ifndef FLATOUT_WIRE_RING_H_
#define FLATOUT_WIRE_RING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/messages.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLATOUT_RING_MAX_PACKET 65536u /* header and payload; a buffer of this size reads any */

struct flatout_ring; /* at offset 0 of the memfd */

/* Formats `bytes` (header and data; the data part becomes the largest power of two that fits). */
bool flatout_ring_init(void* memory, size_t bytes);
/* Checks an existing ring; NULL if it is not one or does not fit into `bytes`. */
struct flatout_ring* flatout_ring_open(void* memory, size_t bytes);

/* Writes one packet: header (size is set here) and two pieces of payload (either may be empty).
 * False when the ring is full or the packet too large: counted as dropped. Async-signal-safe. */
bool flatout_ring_write(struct flatout_ring* ring, const struct flatout_packet* header,
                        const void* payload, size_t payload_size, const void* tail,
                        size_t tail_size);

/* Writes `count` packets of one header, whose payloads of equal size lie side by side, for little
 * more than one costs. All or, as above, none. */
bool flatout_ring_write_many(struct flatout_ring* ring, const struct flatout_packet* header,
                             const void* payloads, size_t payload_size, uint32_t count);

uint64_t flatout_ring_dropped(const struct flatout_ring* ring);

/* The reading side. `data_size` and `tail` are never read back from the shared memory. */
struct flatout_ring_reader {
  struct flatout_ring* ring;
  uint64_t data_size;
  uint64_t tail;
};
/* False if `memory` holds no ring that fits into `bytes`. */
bool flatout_ring_reader_open(struct flatout_ring_reader* reader, void* memory, size_t bytes);

/* Copies the next packet into `out` (at most `capacity` bytes). Returns its size, 0 when there is
 * none, -1 when the ring's contents make no sense (the writer lies): stop reading it for good. */
long flatout_ring_read(struct flatout_ring_reader* reader, void* out, size_t capacity);

/* Steps over a packet that was reserved but not committed. Only for a writer process that is gone
 * (killed within a write): a live one that was only stopped would write into it later. True if
 * there was one: read on. */
bool flatout_ring_skip(struct flatout_ring_reader* reader);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_WIRE_RING_H_ */

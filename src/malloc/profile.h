// The heap profile: a Poisson sample by bytes of all allocations, with their stacks. Whether a
// block is sampled is decided where fast lists are filled, so the fast paths know nothing of it; a
// sampled block gets pages of its own, so freeing it needs no look-up either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

struct Cache;
struct Span;

constexpr unsigned kMaxFrames = 62;

struct Stack {  // one place that allocates; lives for ever
  Stack* next;
  uint32_t hash, frames;
  // Of the sampled blocks: those in use, and all ever. Bytes are as asked for, unscaled.
  uint64_t live_count, live_bytes, total_count, total_bytes;
  // Each sample stands for 1 / (1 - exp(-size / interval)) blocks; these are the sums of that.
  double live_count_estimate, live_bytes_estimate, total_count_estimate, total_bytes_estimate;
  uintptr_t pc[kMaxFrames];
};

struct Sample {
  Stack* stack;
  Sample* next;  // of unused ones
  uint64_t bytes;
  double weight;
};

/// Mean bytes between two samples; 0 turns sampling off for what comes. Threads that run notice at
/// their next sample, at the latest.
void set_sample_interval(uint64_t bytes);
uint64_t sample_interval();

/// Sets the distance to the cache's first or next sample.
void start_sampling(Cache* cache);
/// Notes a block that was just allocated as a sample of its thread.
void take_sample(Span* s, size_t bytes);
void drop_sample(Span* s);

/// Writes the profile as text (docs/malloc.md): 0, or an errno.
int dump_profile(const char* path);
/// act(const Stack&) for every stack, under the profile's lock: act may not allocate.
void for_each_stack(void (*act)(const Stack&, void*), void* argument);

void lock_profile();
void unlock_profile();
void reset_profile_lock();

/// Return addresses of the callers, innermost first, by frame pointers, within [here, stack_end).
/// Never follows a pointer out of the thread's stack.
unsigned unwind(uintptr_t* pc, unsigned most, uintptr_t stack_end);
/// Where this thread's stack ends; 0 if that cannot be told without asking the C library to
/// allocate.
uintptr_t find_stack_end();

}  // namespace flatout::malloc

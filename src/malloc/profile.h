// The heap profile: a Poisson sample by bytes of all allocations, with their stacks. Whether a
// block is sampled is decided where fast lists are filled, so the fast paths know nothing of it; a
// sampled block gets pages of its own, so freeing it needs no look-up either.
//
// Beside what is in use now, each stack knows what it had at the process's peak, and at up to 256
// moments spread evenly over all sampling so far: by these a leak is told from a cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

struct Cache;

constexpr unsigned kMaxNative = 62, kMaxPython = 62, kMaxFrames = kMaxNative + kMaxPython;
constexpr unsigned kMoments = 256;

struct Stack {  // one place that allocates; lives for ever
  Stack* next;
  uint32_t hash;
  uint16_t native, python;  // frames: return addresses, then ids of Python places
  uint64_t live_samples, total_samples;
  // Estimates: each sample stands for 1 / (1 - exp(-size / interval)) blocks.
  double live_count, live_bytes, total_count, total_bytes;
  double live_squares;        // of the bytes that each sample in use stands for
  double peak_bytes;          // at the last peak, if peak_seen is it
  uint64_t peak_seen;         // number of the peak that peak_bytes is of
  unsigned moments;           // of these in at_moment; it has not changed since
  float at_moment[kMoments];  // live_bytes
  uintptr_t frame[kMaxFrames];
};

struct Sample {
  Stack* stack;
  Sample* next;  // of the same block, which grew in place; or of unused ones
  uint64_t bytes;
  double weight;  // what it stands for: so many times its bytes,
  double blocks;  // and so many blocks: none where a block only grew
};

/// Mean bytes between two samples; 0 turns sampling off for what comes. Threads that run notice at
/// their next sample, at the latest. A thread that allocates very fast is sampled more seldom, so
/// that sampling stays cheap; each sample then stands for more.
void set_sample_interval(uint64_t bytes);
uint64_t sample_interval();

/// Sets the distance to the cache's first or next sample.
void start_sampling(Cache* cache);
/// How many blocks a sample of this size stands for, of one every `interval` bytes in the mean.
double sample_weight(uint64_t interval, size_t bytes);

/// The stack of the caller, entered into the profile; nullptr without memory.
Stack* note_stack();
/// Notes a block that was just allocated, or, with the samples it has so far, what it grew by.
/// Without memory one sample less: `so_far`.
Sample* take_sample(size_t bytes, double weight, Sample* so_far = nullptr, bool grew = false);
/// The block has become so much smaller where it lies, 0 to 1.
void shrink_sample(Sample* sample, double share);
/// All of a block's.
void drop_sample(Sample* sample);

/// Where dump_heap() writes, %p being the pid; "" for nowhere. It is written now and then, too, for
/// a process that is killed: with every doubling of its samples, and by the clock, every 0.2 s as
/// long as that takes no more than one part in fifty of its time.
void set_heap_path(const char* path);
bool has_heap_path();
/// Writes stacks, peak and moments for `flatout heap` (docs/malloc.md): 0, or an errno. `at_end`:
/// the process is ending, so the record has all of it.
int dump_heap(bool at_end);
/// Writes the profile in the text form that pprof reads: 0, or an errno. `path` may have a %p.
int dump_profile(const char* path);

void lock_profile();
void unlock_profile();
/// In the child of a fork: with its locks free, and moments from its own begin on.
void reset_profile();

}  // namespace flatout::malloc

// Times an allocator: the operations on standard input, over and over. What lives at their end is
// freed, so that each pass begins as the one before did.
#pragma once

#include <malloc.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace passes {

struct Op {
  uint64_t size;  // 0: a free
  uint64_t stream;
  uint32_t block;
};

inline std::vector<Op> read(uint32_t& blocks) {
  std::vector<Op> ops;
  std::vector<int64_t> by_id;  // the block's number; -1: none is live
  char kind;
  unsigned long long id, size = 0, stream = 0;
  blocks = 0;
  while (scanf(" %c %llu", &kind, &id) == 2) {
    if (by_id.size() <= id) by_id.resize(id * 2 + 1, -1);
    if (kind == 'a') {
      if (scanf("%llu %llu", &size, &stream) != 2) break;
      by_id[id] = blocks;
      ops.push_back({size, stream, blocks++});
    } else if (by_id[id] >= 0) {
      ops.push_back({0, 0, static_cast<uint32_t>(by_id[id])});
      by_id[id] = -1;
    }
  }
  for (const int64_t block : by_id)
    if (block >= 0) ops.push_back({0, 0, static_cast<uint32_t>(block)});
  return ops;
}

inline double cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}
inline uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// Two passes first; then `count` are timed. Prints the CPU time of a pair of requests, the calls
/// of the driver in the timed passes, and what the heap grew by while most blocks were live.
template <class Allocate, class Free, class Calls>
int run(int count, Allocate allocate, Free free, Calls calls) {
  uint32_t blocks = 0;
  const std::vector<Op> ops = read(blocks);
  std::vector<void*> where(blocks);
  size_t live = 0, most = 0, at_most = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].size > 0 ? ++live : --live;
    if (live > most) most = live, at_most = i;
  }
  const uint64_t heap = heap_bytes();
  uint64_t grown = 0, calls_before = 0;
  double begin = 0;
  for (int pass = 0; pass < count + 2; ++pass) {
    if (pass == 2) calls_before = calls(), begin = cpu_ns();
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].size == 0) {
        free(where[ops[i].block]);
      } else {
        where[ops[i].block] = allocate(ops[i].size, ops[i].stream);
      }
      if (pass == 0 && i == at_most) grown = heap_bytes() - heap;
    }
  }
  const double ns = cpu_ns() - begin;
  printf("ns_per_pair %.1f\ncalls_when_timed %llu\nheap_bytes %llu\nlive_blocks %zu\n",
         ns / count / blocks, static_cast<unsigned long long>(calls() - calls_before),
         static_cast<unsigned long long>(grown), most);
  return 0;
}

}  // namespace passes

#include "malloc/profile.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "malloc/cache.h"
#include "malloc/os.h"
#include "malloc/text.h"

namespace flatout::malloc {
namespace {

constexpr unsigned kBuckets = 4096;
constexpr size_t kChunk = 256 << 10;
constexpr int64_t kNever = INT64_MAX / 2;

std::atomic<uint64_t> g_interval{0};
constinit Lock g_lock;
Stack* g_stacks[kBuckets];
Sample* g_unused = nullptr;
char* g_chunk = nullptr;
size_t g_left = 0;

void* take_memory(size_t bytes) {
  bytes = (bytes + 15) & ~size_t{15};
  if (g_left < bytes) {
    g_chunk = static_cast<char*>(os_map(kChunk));
    g_left = g_chunk == nullptr ? 0 : kChunk;
    if (g_chunk == nullptr) return nullptr;
  }
  void* out = g_chunk;
  g_chunk += bytes;
  g_left -= bytes;
  return out;
}

Stack* find_stack(const uintptr_t* pc, unsigned frames) {
  uint64_t hash = 0x9e3779b97f4a7c15u + frames;
  for (unsigned i = 0; i < frames; ++i) hash = (hash ^ pc[i]) * 0xff51afd7ed558ccdu + (hash >> 29);
  const auto h = static_cast<uint32_t>(hash >> 32);
  Stack*& bucket = g_stacks[h % kBuckets];
  for (Stack* s = bucket; s != nullptr; s = s->next) {
    if (s->hash == h && s->frames == frames &&
        std::memcmp(s->pc, pc, frames * sizeof(uintptr_t)) == 0) {
      return s;
    }
  }
  // Only as much as its frames need.
  auto* s =
      static_cast<Stack*>(take_memory(sizeof(Stack) - (kMaxFrames - frames) * sizeof(uintptr_t)));
  if (s == nullptr) return nullptr;
  s->hash = h;
  s->frames = frames;
  std::memcpy(s->pc, pc, frames * sizeof(uintptr_t));
  s->next = bucket;
  bucket = s;
  return s;
}

uint64_t next_random(uint64_t& state) {  // xorshift64*
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1du;
}

// ln of a number in (0, 1], without the mathematics library: m * 2^-e, ln m by its series in
// (m - 1) / (m + 1), off by less than 1e-4.
double natural_log(double x) {
  double shift = 0;
  while (x < 0.70710678) {
    x *= 2;
    shift -= 0.69314718056;
  }
  const double z = (x - 1) / (x + 1), z2 = z * z;
  return shift + 2 * z * (1 + z2 * (1.0 / 3 + z2 * (1.0 / 5 + z2 / 7)));
}

// e^-x for x >= 0.
double exp_minus(double x) {
  if (x > 40) return 0;
  int halvings = 0;
  for (; x > 0.25; ++halvings) x /= 2;
  double e = 1 - x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))));
  while (halvings-- > 0) e *= e;
  return e;
}

}  // namespace

void set_sample_interval(uint64_t bytes) { g_interval.store(bytes, std::memory_order_relaxed); }
uint64_t sample_interval() { return g_interval.load(std::memory_order_relaxed); }

void start_sampling(Cache* cache) {
  const uint64_t interval = sample_interval();
  if (interval == 0) {
    cache->sample_left = kNever;
    return;
  }
  if (cache->random == 0) {
    cache->random = (reinterpret_cast<uintptr_t>(cache) ^ os_now_ns() << 20) | 1;
  }
  cache->stack_end = find_stack_end();
  const double uniform =
      static_cast<double>((next_random(cache->random) >> 11) + 1) * (1.0 / 9007199254740992.0);
  cache->sample_left =
      static_cast<int64_t>(-natural_log(uniform) * static_cast<double>(interval)) + 1;
}

void take_sample(Span* s, size_t bytes) {
  const double interval = static_cast<double>(std::max<uint64_t>(1, sample_interval()));
  uintptr_t pc[kMaxFrames];
  const unsigned frames = unwind(pc, kMaxFrames, t_cache->stack_end);
  const double chance = 1 - exp_minus(static_cast<double>(std::max<size_t>(bytes, 1)) / interval);
  const LockHolder hold(g_lock);
  Sample* sample = g_unused;
  if (sample != nullptr) {
    g_unused = sample->next;
  } else {
    sample = static_cast<Sample*>(take_memory(sizeof(Sample)));
  }
  Stack* stack = sample == nullptr ? nullptr : find_stack(pc, frames);
  if (stack == nullptr) return;  // no memory for it: one sample less
  *sample = {stack, nullptr, bytes, 1 / chance};
  const double estimate = sample->weight * static_cast<double>(bytes);
  stack->live_count += 1;
  stack->live_bytes += bytes;
  stack->total_count += 1;
  stack->total_bytes += bytes;
  stack->live_count_estimate += sample->weight;
  stack->live_bytes_estimate += estimate;
  stack->total_count_estimate += sample->weight;
  stack->total_bytes_estimate += estimate;
  s->sample = sample;
}

void drop_sample(Span* s) {
  const LockHolder hold(g_lock);
  Sample* sample = s->sample;
  s->sample = nullptr;
  Stack* stack = sample->stack;
  stack->live_count -= 1;
  stack->live_bytes -= sample->bytes;
  stack->live_count_estimate -= sample->weight;
  stack->live_bytes_estimate -= sample->weight * static_cast<double>(sample->bytes);
  sample->next = g_unused;
  g_unused = sample;
}

void for_each_stack(void (*act)(const Stack&, void*), void* argument) {
  const LockHolder hold(g_lock);
  for (Stack* bucket : g_stacks) {
    for (const Stack* s = bucket; s != nullptr; s = s->next) act(*s, argument);
  }
}

// The text form of gperftools, which pprof and others read: counts of what is sampled, and the
// interval to scale them by; then the process's map for the addresses.
int dump_profile(const char* path) {
  Text out(path);
  if (!out.ok()) return out.error();
  struct Sums {
    uint64_t live_count, live_bytes, total_count, total_bytes;
  } sums{};
  for_each_stack(
      [](const Stack& s, void* p) {
        auto& sum = *static_cast<Sums*>(p);
        sum.live_count += s.live_count;
        sum.live_bytes += s.live_bytes;
        sum.total_count += s.total_count;
        sum.total_bytes += s.total_bytes;
      },
      &sums);
  out.add("heap profile: ").number(sums.live_count).add(": ").number(sums.live_bytes).add(" [");
  out.number(sums.total_count).add(": ").number(sums.total_bytes).add("] @ heap_v2/");
  out.number(std::max<uint64_t>(1, sample_interval())).add("\n");
  for_each_stack(
      [](const Stack& s, void* p) {
        Text& text = *static_cast<Text*>(p);
        text.number(s.live_count).add(": ").number(s.live_bytes).add(" [");
        text.number(s.total_count).add(": ").number(s.total_bytes).add("] @");
        for (unsigned i = 0; i < s.frames; ++i) text.add(" 0x").hex(s.pc[i]);
        text.add("\n");
      },
      &out);
  out.add("\nMAPPED_LIBRARIES:\n").file("/proc/self/maps");
  return out.finish();
}

void lock_profile() { g_lock.lock(); }
void unlock_profile() { g_lock.unlock(); }
void reset_profile_lock() { g_lock.reset(); }

}  // namespace flatout::malloc

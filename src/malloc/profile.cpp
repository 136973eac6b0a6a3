#include "malloc/profile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "malloc/arena.h"
#include "malloc/cache.h"
#include "malloc/mappings.h"
#include "malloc/os.h"
#include "malloc/python.h"
#include "malloc/text.h"
#include "malloc/unwind.h"

namespace flatout::malloc {
namespace {

constexpr unsigned kBuckets = 4096;
constexpr int64_t kNever = INT64_MAX / 2;
constexpr uint64_t kFirstDump = 8;  // samples
constexpr uint64_t kDense =
    50'000;  // ns: samples that come faster are too many; one takes 0.5 to 3
constexpr uint64_t kMostThinning = 16;
constexpr uint64_t kDumpEvery = 200'000'000;  // ns
constexpr uint64_t kDumpShare = 50;  // of the time between two dumps, one takes at most 1 / 50

std::atomic<uint64_t> g_interval{0};
constinit Lock g_dump_lock;  // before g_lock
constinit Lock g_lock;
constinit Arena g_arena;
Stack* g_stacks[kBuckets];
Sample* g_unused = nullptr;
char g_path[512];

// All under g_lock.
double g_live = 0, g_peak = 0;  // bytes
uint64_t g_peak_number = 0;     // a stack whose peak_seen is less has not changed since the peak
uint64_t g_moment_ns[kMoments];
unsigned g_moments = 0;
uint64_t g_gap = 1, g_until_moment = 1;  // samples between moments
uint64_t g_forked_ns = 0;                // when this process was; 0: it was not
uint64_t g_samples = 0, g_next_dump = kFirstDump;
uint64_t g_dump_ns = 0;  // when the next is due by the clock

Stack* find_stack(const uintptr_t* frame, unsigned native, unsigned python) {
  const unsigned frames = native + python;
  uint64_t hash = 0x9e3779b97f4a7c15u + frames;
  for (unsigned i = 0; i < frames; ++i) {
    hash = (hash ^ frame[i]) * 0xff51afd7ed558ccdu + (hash >> 29);
  }
  const auto h = static_cast<uint32_t>(hash >> 32);
  Stack*& bucket = g_stacks[h % kBuckets];
  for (Stack* s = bucket; s != nullptr; s = s->next) {
    if (s->hash == h && s->native == native && s->python == python &&
        std::memcmp(s->frame, frame, frames * sizeof(uintptr_t)) == 0) {
      return s;
    }
  }
  // Only as much as its frames need.
  auto* s =
      static_cast<Stack*>(g_arena.take(sizeof(Stack) - (kMaxFrames - frames) * sizeof(uintptr_t)));
  if (s == nullptr) return nullptr;
  s->hash = h;
  s->native = static_cast<uint16_t>(native);
  s->python = static_cast<uint16_t>(python);
  std::memcpy(s->frame, frame, frames * sizeof(uintptr_t));
  s->next = bucket;
  bucket = s;
  return s;
}

template <typename Act>
void for_each_stack(Act act) {
  for (Stack* bucket : g_stacks) {
    for (Stack* s = bucket; s != nullptr; s = s->next) act(*s);
  }
}

// Before s changes, and before it is read: what it had at the peak and at the moments since its
// last change is what it has now.
void settle(Stack& s) {
  if (s.peak_seen != g_peak_number) {
    s.peak_bytes = s.live_bytes;
    s.peak_seen = g_peak_number;
  }
  for (; s.moments < g_moments; ++s.moments)
    s.at_moment[s.moments] = static_cast<float>(s.live_bytes);
}

// Every g_gap samples. Where there is no room it leaves out every second one instead, and that is
// true of it: the next is due when it would have been with the longer gap.
void mark_moment(uint64_t now) {
  if (g_moments < kMoments) {
    g_moment_ns[g_moments++] = now;
    g_until_moment = g_gap;
    return;
  }
  for_each_stack([](Stack& s) {
    settle(s);
    for (unsigned i = 0; i < kMoments / 2; ++i) s.at_moment[i] = s.at_moment[2 * i + 1];
    s.moments = kMoments / 2;
  });
  for (unsigned i = 0; i < kMoments / 2; ++i) g_moment_ns[i] = g_moment_ns[2 * i + 1];
  g_moments = kMoments / 2;
  g_until_moment = g_gap;
  g_gap *= 2;
}

// After a sample, at the time `now`.
bool dump_is_due(uint64_t now) {
  if (++g_samples < g_next_dump && (now < g_dump_ns || g_dump_ns == 0)) return false;
  if (g_samples >= g_next_dump) g_next_dump *= 2;
  g_dump_ns = UINT64_MAX;  // not while this one is being written
  return true;
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

uint64_t rounded(double value) {  // without libm
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return value > 0 ? static_cast<uint64_t>(value + 0.5) : 0;
}

// `out` becomes `path` with the pid for %p: several processes of a job share the variable, and a
// forked one must not write over its parent's.
void expand_path(const char* path, char* out, size_t room) {
  size_t n = 0;
  for (; *path != 0 && n + 12 < room; ++path) {
    if (path[0] != '%' || path[1] != 'p') {
      out[n++] = *path;
      continue;
    }
    char digits[64];
    const size_t count =
        static_cast<size_t>(write_digits(digits, static_cast<uint64_t>(::getpid())) - digits);
    std::memcpy(out + n, digits, count);
    n += count;
    ++path;
  }
  out[n] = 0;
}

void unuse(Sample* sample) {  // under g_lock
  sample->next = g_unused;
  g_unused = sample;
}

bool any_sample() {
  const LockHolder hold(g_lock);
  return g_peak_number != 0;
}

unsigned stack_here(uintptr_t* frame, unsigned& python) {
  // note_stack() and take_sample() come from any thread at any time: its end is looked up anew.
  const unsigned native = unwind(frame, kMaxNative, find_stack_end());
  uint32_t ids[kMaxPython];
  python = python_stack(ids, kMaxPython);
  std::copy(ids, ids + python, frame + native);
  return native;
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
  const uint64_t now = os_now_ns();
  if (cache->random == 0) {
    cache->random = (reinterpret_cast<uintptr_t>(cache) ^ now << 20) | 1;
  }
  // How much one sample stands for follows how fast they come; where each is wanted, each is taken.
  const uint64_t past = now - cache->sampled_ns;
  uint64_t thinned = cache->sample_interval;
  if (past < kDense) thinned *= 2;
  if (past > 4 * kDense) thinned /= 2;
  cache->sample_interval =
      std::clamp(thinned, interval, interval > 1 ? interval * kMostThinning : interval);
  cache->sampled_ns = now;
  const double uniform =
      static_cast<double>((next_random(cache->random) >> 11) + 1) * (1.0 / 9007199254740992.0);
  cache->sample_left =
      static_cast<int64_t>(-natural_log(uniform) * static_cast<double>(cache->sample_interval)) + 1;
}

double sample_weight(uint64_t interval, size_t bytes) {
  const double share =
      static_cast<double>(std::max<size_t>(bytes, 1)) / static_cast<double>(interval);
  return 1 / (1 - exp_minus(share));
}

Stack* note_stack() {
  uintptr_t frame[kMaxFrames];
  unsigned python = 0;
  const unsigned native = stack_here(frame, python);
  const LockHolder hold(g_lock);
  return find_stack(frame, native, python);
}

Sample* take_sample(size_t bytes, double weight, Sample* so_far, bool grew) {
  uintptr_t frame[kMaxFrames];
  unsigned python = 0;
  const unsigned native = stack_here(frame, python);
  Sample* sample = nullptr;
  bool due = false;
  {
    const LockHolder hold(g_lock);
    sample = g_unused;
    if (sample != nullptr) {
      g_unused = sample->next;
    } else {
      sample = static_cast<Sample*>(g_arena.take(sizeof(Sample)));
    }
    Stack* stack = sample == nullptr ? nullptr : find_stack(frame, native, python);
    if (stack == nullptr) {
      if (sample != nullptr) unuse(sample);
      return so_far;
    }
    settle(*stack);
    const double blocks = grew ? 0 : weight;
    *sample = {stack, so_far, bytes, weight, blocks};
    const double estimate = weight * static_cast<double>(bytes);
    stack->live_samples += 1;
    stack->total_samples += 1;
    stack->live_count += blocks;
    stack->live_bytes += estimate;
    stack->live_squares += estimate * estimate;
    stack->total_count += blocks;
    stack->total_bytes += estimate;
    g_live += estimate;
    if (g_live > g_peak) {
      g_peak = g_live;
      ++g_peak_number;
    }
    const uint64_t now = os_now_ns();
    if (--g_until_moment == 0) mark_moment(now);
    due = dump_is_due(now);
  }
  if (due) {
    const int saved = errno;  // the program called malloc
    dump_heap(false);
    errno = saved;
  }
  return sample;
}

void shrink_sample(Sample* sample, double share) {
  const LockHolder hold(g_lock);
  for (; sample != nullptr; sample = sample->next) {
    Stack* stack = sample->stack;
    settle(*stack);
    const double before = sample->weight * static_cast<double>(sample->bytes);
    sample->bytes = rounded(static_cast<double>(sample->bytes) * share);
    const double after = sample->weight * static_cast<double>(sample->bytes);
    stack->live_bytes += after - before;
    stack->live_squares += after * after - before * before;
    g_live += after - before;
  }
}

void drop_sample(Sample* sample) {
  const LockHolder hold(g_lock);
  while (sample != nullptr) {
    Stack* stack = sample->stack;
    settle(*stack);
    const double estimate = sample->weight * static_cast<double>(sample->bytes);
    // Sums of many numbers do not come back to zero by themselves.
    if (--stack->live_samples == 0) {
      stack->live_count = stack->live_bytes = stack->live_squares = 0;
    } else {
      stack->live_count -= sample->blocks;
      stack->live_bytes -= estimate;
      stack->live_squares -= estimate * estimate;
    }
    g_live -= estimate;
    Sample* const next = sample->next;
    unuse(sample);
    sample = next;
  }
}

// The text form of gperftools, which pprof and others read. The counts are scaled already, which
// an interval of 1 says; then the process's map for the addresses.
int dump_profile(const char* path) {
  char name[512];
  expand_path(path, name, sizeof name);
  Text out(name);
  if (!out.ok()) return out.error();
  {
    const LockHolder hold(g_lock);
    double live_count = 0, live_bytes = 0, total_count = 0, total_bytes = 0;
    for_each_stack([&](const Stack& s) {
      live_count += s.live_count;
      live_bytes += s.live_bytes;
      total_count += s.total_count;
      total_bytes += s.total_bytes;
    });
    const auto line = [&](double a, double b, double c, double d) {
      out.number(rounded(a)).add(": ").number(rounded(b)).add(" [");
      out.number(rounded(c)).add(": ").number(rounded(d)).add("] @");
    };
    out.add("heap profile: ");
    line(live_count, live_bytes, total_count, total_bytes);
    out.add(" heap_v2/1\n");
    for_each_stack([&](const Stack& s) {
      line(s.live_count, s.live_bytes, s.total_count, s.total_bytes);
      for (unsigned i = 0; i < s.native; ++i) out.add(" 0x").hex(s.frame[i]);
      out.add("\n");
    });
  }
  out.add("\nMAPPED_LIBRARIES:\n").file("/proc/self/maps");
  return out.finish();
}

bool has_heap_path() { return g_path[0] != 0; }
void set_heap_path(const char* path) { std::strncpy(g_path, path, sizeof g_path - 1); }

int dump_heap(bool at_end) {
  if (g_path[0] == 0 || !any_sample()) return 0;
  const uint64_t begin = os_now_ns();
  char name[640];
  expand_path(g_path, name, sizeof name - 8);
  char temporary[648];
  const LockHolder dumping(g_dump_lock);
  std::strcpy(temporary, name);
  std::strcat(temporary, ".tmp");
  Text out(temporary);
  if (!out.ok()) return out.error();
  out.add("flatout-heap 1\npid ").number(static_cast<uint64_t>(::getpid()));
  out.add("\ninterval ").number(sample_interval());
  out.add("\nwritten ").number(begin).add("\n");
  if (g_forked_ns != 0) out.add("forked ").number(g_forked_ns).add("\n");
  if (at_end) out.add("at-end\n");
  if (python_keeps_its_objects()) out.add("objects-apart\n");
  uint32_t last_place = 0;
  {
    const LockHolder hold(g_lock);
    out.add("live ").number(rounded(g_live)).add("\npeak ").number(rounded(g_peak));
    out.add("\nmoments");
    for (unsigned i = 0; i < g_moments; ++i) out.add(" ").number(g_moment_ns[i]);
    out.add("\n");
    for_each_stack([&](Stack& s) {
      if (s.total_samples == 0) return;
      settle(s);
      out.add("stack ").number(rounded(s.live_bytes)).add(" ").number(rounded(s.live_count));
      out.add(" ").number(rounded(s.total_bytes)).add(" ").number(rounded(s.total_count));
      out.add(" ").number(rounded(s.peak_bytes)).add(" ").number(s.total_samples);
      out.add(" ").number(rounded(s.live_bytes > 0 ? s.live_squares / s.live_bytes : 0)).add(" :");
      for (unsigned i = 0; i < s.moments; ++i) out.add(" ").number(rounded(s.at_moment[i]));
      out.add(" @");
      for (unsigned i = 0; i < s.native; ++i) out.add(" ").hex(s.frame[i]);
      for (unsigned i = 0; i < s.python; ++i) {
        const auto id = static_cast<uint32_t>(s.frame[s.native + i]);
        out.add(" p").number(id);
        last_place = std::max(last_place, id);
      }
      out.add("\n");
    });
  }
  for (uint32_t id = 1; id <= last_place; ++id) {
    const PythonPlace* place = python_place(id);
    if (place == nullptr) continue;
    out.add("python ").number(id).add("\t").number(place->line).add("\t").add(place->function());
    out.add("\t").add(place->file()).add("\n");
  }
  write_mappings(out);
  out.add("maps\n").file("/proc/self/maps");
  const int error = out.finish();
  const uint64_t end = os_now_ns();
  {
    const LockHolder hold(g_lock);
    g_dump_ns = end + std::max(kDumpEvery, (end - begin) * kDumpShare);
  }
  if (error == 0 && ::rename(temporary, name) != 0) return errno;
  return error;
}

void lock_profile() {
  g_dump_lock.lock();
  g_lock.lock();
}
void unlock_profile() {
  g_lock.unlock();
  g_dump_lock.unlock();
}
void reset_profile() {
  g_lock.reset();
  g_dump_lock.reset();
  // As close together as those of its parent's begin, however long that has lived.
  g_gap = g_until_moment = 1;
  g_forked_ns = os_now_ns();
}

}  // namespace flatout::malloc

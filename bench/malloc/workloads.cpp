// The workloads that bench/malloc/compare.py runs under each allocator: one per process, by name.
// Prints one line, "value=... name=value ..."; value is CPU ns per operation unless the workload
// says otherwise. Built with -fno-builtin, so that no pair of malloc and free is optimised away.
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

double cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
long faults() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return u.ru_minflt;
}
double peak_mib() {  // not getrusage's: that begins with the parent's
  FILE* f = fopen("/proc/self/status", "r");
  char line[256];
  long kib = 0;
  while (f != nullptr && fgets(line, sizeof line, f) != nullptr) {
    if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
  }
  if (f != nullptr) fclose(f);
  return static_cast<double>(kib) / 1024;
}
double rss_mib() {
  long pages = 0, resident = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (f == nullptr || fscanf(f, "%ld %ld", &pages, &resident) != 2) return 0;
  fclose(f);
  return static_cast<double>(resident) * 4096 / 1048576;
}
uint64_t g_random = 88172645463325252u;
uint64_t rnd() {
  g_random ^= g_random << 13;
  g_random ^= g_random >> 7;
  return g_random ^= g_random << 17;
}
void* volatile g_sink;
void touch(char* p, size_t n) {
  for (size_t i = 0; i < n; i += 4096) p[i] = 1;
}

void pair(size_t size) {
  const long n = size >= 1 << 24 ? 50'000 : size >= 1 << 20 ? 1'000'000 : 20'000'000;
  for (int i = 0; i < 1000; ++i) {
    g_sink = malloc(size);
    free(g_sink);
  }
  const double begin = cpu_s();
  for (long i = 0; i < n; ++i) {
    g_sink = malloc(size);
    free(g_sink);
  }
  printf("value=%.3f\n", (cpu_s() - begin) * 1e9 / static_cast<double>(n));
}

void pair_touched(size_t size) {
  const int n = size >= 1 << 24 ? 40 : 2000;
  long before = 0;
  double begin = 0;
  for (int i = -5; i < n; ++i) {
    if (i == 0) {
      before = faults();
      begin = cpu_s();
    }
    char* p = static_cast<char*>(malloc(size));
    touch(p, size);
    g_sink = p;
    free(p);
  }
  printf("value=%.1f faults=%.2f\n", (cpu_s() - begin) * 1e9 / n,
         static_cast<double>(faults() - before) / n);
}

// order: 0 first in first out, 1 last in first out, 2 random. One operation is a malloc and its
// free.
void batch(size_t size, size_t count, int order) {
  std::vector<char*> p(count);
  std::vector<uint32_t> place(count);
  for (size_t i = 0; i < count; ++i)
    place[i] = static_cast<uint32_t>(order == 1 ? count - 1 - i : i);
  if (order == 2) {
    for (size_t i = count - 1; i > 0; --i) std::swap(place[i], place[rnd() % (i + 1)]);
  }
  const size_t rounds = std::max<size_t>(3, (size >= 32768 ? 1'500'000 : 16'000'000) / count);
  double begin = 0;
  for (size_t r = 0; r <= rounds; ++r) {
    if (r == 1) begin = cpu_s();
    for (size_t i = 0; i < count; ++i) p[i] = static_cast<char*>(malloc(size));
    for (size_t i = 0; i < count; ++i) free(p[place[i]]);
  }
  printf("value=%.3f\n", (cpu_s() - begin) * 1e9 / static_cast<double>(rounds * count));
}

void mixed_one(uint64_t seed, long n) {
  std::vector<char*> slots(4096);
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (long i = 0; i < n; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    char*& slot = slots[x % slots.size()];
    free(slot);
    const unsigned shift = x >> 20 & 7;  // 16 .. 2048, small ones as often as large ones
    const size_t size = 16 + (x >> 32) % (size_t{16} << shift);
    slot = static_cast<char*>(malloc(size));
    *slot = 1;
  }
  for (char* p : slots) free(p);
}
void mixed(int threads) {
  const long n = 16'000'000;
  const double begin = cpu_s();
  std::vector<std::thread> all;
  for (int t = 1; t < threads; ++t) all.emplace_back(mixed_one, t + 1, n);
  mixed_one(1, n);
  for (std::thread& t : all) t.join();
  printf("value=%.3f peak_mib=%.1f\n", (cpu_s() - begin) * 1e9 / static_cast<double>(n * threads),
         peak_mib());
}

// One thread allocates batches of 512, another frees them.
void xthread(size_t size) {
  constexpr size_t kBatch = 512, kSlots = 4;
  const long rounds = size >= 32768 ? 6000 : 30000;
  static void* batches[kSlots][kBatch];
  static std::atomic<long> made{0}, freed{0};
  const double begin = cpu_s();
  std::thread consumer([&] {
    for (long r = 0; r < rounds; ++r) {
      while (made.load(std::memory_order_acquire) <= r) sched_yield();
      for (void* p : batches[r % kSlots]) free(p);
      freed.store(r + 1, std::memory_order_release);
    }
  });
  for (long r = 0; r < rounds; ++r) {
    while (r - freed.load(std::memory_order_acquire) >= static_cast<long>(kSlots)) sched_yield();
    for (void*& p : batches[r % kSlots]) {
      p = malloc(size);
      *static_cast<char*>(p) = 1;
    }
    made.store(r + 1, std::memory_order_release);
  }
  consumer.join();
  printf("value=%.3f peak_mib=%.1f\n",
         (cpu_s() - begin) * 1e9 / static_cast<double>(rounds * static_cast<long>(kBatch)),
         peak_mib());
}

constexpr int kBuffers = 24;
size_t train_bytes(int i) {
  return i == 6 ? size_t{32} << 20 : (size_t{512} << 10) << (i % 7) | size_t(i) << 12;
}

// A training step: 24 buffers of 0.5 to 32 MiB are made and written in the forward pass, read and
// freed in the backward pass with a gradient each. jitter: sizes vary by up to a quarter from step
// to step. value: CPU ms per step.
void trainstep(int steps, bool jitter, double pause_s) {
  size_t base[kBuffers];
  for (int i = 0; i < kBuffers; ++i) base[i] = train_bytes(i);
  std::vector<double> times;
  std::vector<long> fault_counts;
  for (int s = 0; s < steps; ++s) {
    const double begin = cpu_s();
    const long before = faults();
    char* buffer[kBuffers];
    size_t size[kBuffers];
    for (int i = 0; i < kBuffers; ++i) {
      size[i] = jitter ? base[i] - base[i] / 4 * (rnd() % 256) / 256 : base[i];
      buffer[i] = static_cast<char*>(malloc(size[i]));
      memset(buffer[i], s, size[i]);
    }
    for (int i = kBuffers - 1; i >= 0; --i) {
      char* gradient = static_cast<char*>(malloc(size[i]));
      memcpy(gradient, buffer[i], size[i]);
      free(buffer[i]);
      g_sink = gradient;
      free(gradient);
    }
    times.push_back(cpu_s() - begin);
    fault_counts.push_back(faults() - before);
    if (pause_s > 0) usleep(static_cast<useconds_t>(pause_s * 1e6));
  }
  const size_t warm = std::min<size_t>(3, times.size() - 1);
  std::sort(times.begin() + static_cast<long>(warm), times.end());
  const long most =
      *std::max_element(fault_counts.begin() + static_cast<long>(warm), fault_counts.end());
  long sum = 0;
  for (size_t i = warm; i < fault_counts.size(); ++i) sum += fault_counts[i];
  printf("value=%.3f faults=%.1f most_faults=%ld peak_mib=%.1f held_mib=%.1f\n",
         times[warm + (times.size() - warm) / 2] * 1e3,
         static_cast<double>(sum) / static_cast<double>(fault_counts.size() - warm), most,
         peak_mib(), rss_mib());
}

// What the step above writes and reads without an allocator: the buffers stay where they are, in
// huge pages, and all gradients share one place. Not a row of compare.py: it tells how near the
// best come to what is possible.
void trainwrites(int steps) {
  size_t all = size_t{32} << 20;  // the gradients' place
  for (int i = 0; i < kBuffers; ++i) all += train_bytes(i);
  char* const gradient = static_cast<char*>(aligned_alloc(2 << 20, (all + (2 << 20)) >> 21 << 21));
  madvise(gradient, all, MADV_HUGEPAGE);
  std::vector<double> times;
  for (int s = 0; s < steps; ++s) {
    const double begin = cpu_s();
    char* buffer = gradient + (size_t{32} << 20);
    for (int i = 0; i < kBuffers; buffer += train_bytes(i++)) memset(buffer, s, train_bytes(i));
    for (int i = kBuffers - 1; i >= 0; --i) {
      buffer -= train_bytes(i);
      memcpy(gradient, buffer, train_bytes(i));
      g_sink = gradient;
    }
    times.push_back(cpu_s() - begin);
  }
  const size_t warm = std::min<size_t>(3, times.size() - 1);
  std::sort(times.begin() + static_cast<long>(warm), times.end());
  printf("value=%.3f\n", times[warm + (times.size() - warm) / 2] * 1e3);
  free(gradient);
}

// value: % of a burst still resident after so many seconds, busy with something small, or asleep.
void giveback(size_t size, double seconds, bool busy) {
  const double start = rss_mib();
  const size_t count = (size_t{300} << 20) / size;
  std::vector<char*> p(count);
  for (char*& q : p) {
    q = static_cast<char*>(malloc(size));
    for (size_t i = 0; i < size; i += 64) q[i] = 1;
  }
  const double list = static_cast<double>(count * sizeof(char*)) / 1048576;
  const double high = rss_mib() - start - list;
  for (char* q : p) free(q);
  timespec begin{}, now{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    if (busy) {
      for (int i = 0; i < 1000; ++i) free(malloc(static_cast<size_t>(100 + i)));
    } else {
      usleep(20000);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (static_cast<double>(now.tv_sec - begin.tv_sec) +
               static_cast<double>(now.tv_nsec - begin.tv_nsec) * 1e-9 <
           seconds);
  printf("value=%.2f high_mib=%.1f\n", std::max(0.0, rss_mib() - start - list) / high * 100, high);
}

// Phase 1 fills 256 MiB with blocks of one size and frees them; phase 2, in other threads, does so
// with another size. value: peak of phase 2 over what is live in it.
void blowup(size_t first, size_t second, bool ended) {
  const size_t bytes = size_t{256} << 20;
  std::atomic<bool> done{false}, stop{false};
  const auto fill = [&](size_t size, size_t total, bool free_them) {
    std::vector<char*> p(total / size);
    for (char*& q : p) {
      q = static_cast<char*>(malloc(size));
      memset(q, 1, size);
    }
    if (free_them) {
      for (char* q : p) free(q);
    }
    return p.size() * sizeof(char*);
  };
  std::thread one([&] {
    fill(first, bytes, true);
    done = true;
    while (!ended && !stop) usleep(10000);
  });
  while (!done) usleep(1000);
  if (ended) one.join();
  std::atomic<size_t> lists{0};
  const auto two = [&] { lists += fill(second, bytes / 2, false); };
  std::thread a(two), b(two);
  a.join();
  b.join();
  // The lists are freed by now or not: 1/32 of the whole at most.
  printf("value=%.3f\n", peak_mib() * 1048576 / static_cast<double>(bytes));
  stop = true;
  if (!ended) one.join();
}

// value: % of memory over what was asked for, for 100 MiB of blocks.
void space(size_t size) {
  const size_t count = (size_t{100} << 20) / size;
  std::vector<char*> p(count);
  memset(p.data(), 0, count * sizeof(char*));
  const double start = rss_mib();
  for (char*& q : p) {
    q = static_cast<char*>(malloc(size));
    memset(q, 1, size);
  }
  const double asked = static_cast<double>(count * size) / 1048576;
  printf("value=%.2f\n", ((rss_mib() - start) / asked - 1) * 100);
  _exit((fflush(stdout), 0));
}

// value: anonymous KiB of a process that has done nothing.
void start() {
  free(malloc(100));
  FILE* f = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kib = 0;
  while (f != nullptr && fgets(line, sizeof line, f) != nullptr) {
    if (sscanf(line, "Anonymous: %ld", &kib) == 1) break;
  }
  printf("value=%ld\n", kib);
}

void churn() {
  const int n = 2000;
  const double begin = cpu_s();
  for (int i = 0; i < n; ++i) {
    std::thread([] {
      void* p[64];
      for (int k = 0; k < 64; ++k) p[k] = malloc(static_cast<size_t>(16 + k * 16));
      for (void* q : p) free(q);
    }).join();
  }
  printf("value=%.1f\n", (cpu_s() - begin) * 1e9 / n);
}

void calloc_loop(size_t size) {
  const int n = size >= 1 << 20 ? 3000 : 1'000'000;
  const double begin = cpu_s();
  for (int i = 0; i < n; ++i) {
    g_sink = calloc(1, size);
    free(g_sink);
  }
  printf("value=%.1f\n", (cpu_s() - begin) * 1e9 / n);
}

// Grows 64 vectors side by side from 1 KiB to 16 MiB by a half each time. value: CPU ms.
void realloc_grow() {
  const double begin = cpu_s();
  std::vector<char*> p(16, nullptr);
  for (size_t size = 1024; size < size_t{16} << 20; size += size / 2) {
    for (char*& q : p) {
      q = static_cast<char*>(realloc(q, size));
      touch(q, size);
    }
  }
  for (char* q : p) free(q);
  printf("value=%.2f peak_mib=%.1f\n", (cpu_s() - begin) * 1e3, peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return i < argc ? strtoul(argv[i], nullptr, 10) : 0ul; };
  if (name == "pair")
    pair(number(2));
  else if (name == "pair_touched")
    pair_touched(number(2));
  else if (name == "batch")
    batch(number(2), number(3), static_cast<int>(number(4)));
  else if (name == "mixed")
    mixed(static_cast<int>(number(2)));
  else if (name == "xthread")
    xthread(number(2));
  else if (name == "trainstep")
    trainstep(static_cast<int>(number(2)), number(3) != 0, static_cast<double>(number(4)));
  else if (name == "trainwrites")
    trainwrites(static_cast<int>(number(2)));
  else if (name == "giveback")
    giveback(number(2), static_cast<double>(number(3)), number(4) != 0);
  else if (name == "blowup")
    blowup(number(2), number(3), number(4) != 0);
  else if (name == "space")
    space(number(2));
  else if (name == "start")
    start();
  else if (name == "churn")
    churn();
  else if (name == "calloc")
    calloc_loop(number(2));
  else if (name == "realloc")
    realloc_grow();
  else
    return fprintf(stderr, "unknown workload\n"), 2;
  return 0;
}

// Loading and unloading of the library, its environment variables, and flatout/malloc.h.
#include "malloc/start.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#define FLATOUT_MALLOC_API __attribute__((visibility("default")))
#include "flatout/malloc.h"
#include "malloc/allocator.h"
#include "malloc/debug.h"
#include "malloc/fork.h"
#include "malloc/idle.h"
#include "malloc/os.h"
#include "malloc/profile.h"
#include "malloc/python.h"
#include "malloc/recording.h"
#include "malloc/text.h"

namespace flatout::malloc {
namespace {

// Variables as the program's start left them; nullptr where one is not set.
struct Variables {
#define FLATOUT_OPTION(name, type, standard, help) const char* name;
#include "malloc/options.def"
#undef FLATOUT_OPTION
};

// The variable of an option: "malloc_sample" is FLATOUT_MALLOC_SAMPLE.
const char* variable(const char* option) {
  char name[64] = "FLATOUT_";
  size_t n = std::strlen(name);
  for (; *option != 0 && n + 1 < sizeof name; ++option) {
    name[n++] = *option >= 'a' && *option <= 'z' ? static_cast<char>(*option - 'a' + 'A') : *option;
  }
  name[n] = 0;
  return ::getenv(name);
}

char g_profile[512];  // with %p for the pid: several processes of a job share the variable
bool g_stats = false;

bool is(const char* value, const char* what) {
  return value != nullptr && std::strcmp(value, what) == 0;
}

#if FLATOUT_MALLOC_DEBUG
void sample_from_now(uint64_t bytes) {
  find_python();
  debug::note_from(bytes != 0 ? 0 : SIZE_MAX);
}

void start_checks(const char* check, const char* abort, const char* quarantine) {
  debug::Settings settings;
  settings.check = !is(check, "0");
  settings.abort = !is(abort, "0");
  if (settings.check) find_python();  // for the stacks of what is found
  if (quarantine != nullptr) settings.quarantine = std::strtoull(quarantine, nullptr, 10);
  debug::start(settings);
}
#else
void sample_from_now(uint64_t bytes) {
  if (bytes != 0) find_python();
  set_sample_interval(bytes);
  if (t_cache != &g_no_cache) start_sampling(t_cache);
}
#endif

void tell(int error, const char* what) {
  if (error != 0) os_message(what, reinterpret_cast<void*>(static_cast<intptr_t>(error)));
}

__attribute__((constructor)) void load() {
#define FLATOUT_OPTION(name, type, standard, help) variable(#name),
  const Variables set = {
#include "malloc/options.def"
  };
#undef FLATOUT_OPTION
  if (is(set.malloc_background, "0")) set_idle_thread(false);
  if (set.malloc_profile != nullptr) {
    std::strncpy(g_profile, set.malloc_profile, sizeof g_profile - 1);
  }
  if (set.malloc_heap != nullptr) {
    set_heap_path(set.malloc_heap);
    spare_free_threaded_python();
  }
  const bool sampled = set.malloc_profile != nullptr || set.malloc_heap != nullptr;
  if (sampled) sample_from_now(512 << 10);
#if FLATOUT_MALLOC_DEBUG
  start_checks(set.malloc_check, set.malloc_abort, set.malloc_quarantine);
  if (set.malloc_record != nullptr) {
    const size_t least = set.malloc_record_least != nullptr
                             ? std::strtoull(set.malloc_record_least, nullptr, 10)
                             : 4096;
    find_python();
    // A stack takes long: the profile, too, has the recorded ones alone unless all are asked for.
    if (sampled) debug::note_from(least);
    start_recording(set.malloc_record, least);
  }
#endif
  if (set.malloc_sample != nullptr) {
    sample_from_now(std::strtoull(set.malloc_sample, nullptr, 10));
  }
  g_stats = is(set.malloc_stats, "1");
}

__attribute__((destructor)) void unload() {
  if (g_profile[0] != 0) tell(dump_profile(g_profile), "the heap profile was not written, errno");
  tell(dump_heap(true), "the record of the heap was not written, errno");
#if FLATOUT_MALLOC_DEBUG
  debug::finish();
#endif
  if (g_stats) print_stats();
}

}  // namespace

void print_stats() {
  flatout_malloc_stats s{};
  flatout_malloc_get_stats(&s, sizeof s);
  Text out(STDERR_FILENO);
  out.add("flatout: malloc: in use ").number(s.in_use_bytes).add(" B, cached ");
  out.number(s.cached_bytes).add(" B, given back ").number(s.released_bytes).add(" B, window ");
  out.number(s.window_ns / 1'000'000).add(" ms, thread caches ").number(s.thread_caches);
  out.add(", invalid frees ").number(s.invalid_frees).add("\n");
}

}  // namespace flatout::malloc

namespace fm = flatout::malloc;

extern "C" {

int flatout_malloc_get_stats(struct flatout_malloc_stats* out, size_t size) {
  if (out == nullptr) return EINVAL;
  const fm::Totals t = fm::totals();
  flatout_malloc_stats all{};
  all.in_use_bytes = t.in_use_bytes;
  all.cached_bytes = t.cached_bytes;
  all.reserved_bytes = t.reserved_bytes;
  all.released_bytes = t.released_bytes;
  all.window_ns = fm::idle_window_ns();
  all.sample_bytes = fm::sample_interval();
  all.invalid_frees = fm::invalid_frees();
  all.thread_caches = t.caches;
  std::memcpy(out, &all, std::min(size, sizeof all));
  return 0;
}

size_t flatout_malloc_purge(void) { return fm::purge(); }

void flatout_malloc_mark_step(void) {
#if FLATOUT_MALLOC_DEBUG
  fm::record_step();
#endif
  fm::idle_mark_step(fm::os_now_ns());
}

void flatout_malloc_set_sampling(uint64_t bytes) { fm::sample_from_now(bytes); }

int flatout_malloc_heap_dump(const char* path) {
  return path == nullptr ? EINVAL : fm::dump_profile(path);
}

}  // extern "C"

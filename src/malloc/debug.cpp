#include "malloc/debug.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "malloc/allocator.h"
#include "malloc/foreign.h"
#include "malloc/lock.h"
#include "malloc/os.h"
#include "malloc/profile.h"
#include "malloc/python.h"
#include "malloc/range.h"
#include "malloc/recording.h"
#include "malloc/text.h"

namespace flatout::malloc::debug {
namespace {

constexpr size_t kTail = 16;                      // bytes of the red zone behind a block
constexpr size_t kGuardFrom = size_t{64} << 10;   // blocks of this size have a guard page
constexpr uint32_t kMostGuards = 8192;            // each costs two of the process's 65,000 mappings
constexpr size_t kMostWaiting = size_t{1} << 18;  // blocks in quarantine
constexpr unsigned char kFresh = 0xcb, kFreed = 0xdf, kZone = 0xfd;
constexpr uint64_t kLiveSeal = 0x6c6976652d626c6b, kFreedSeal = 0x66726565642d626c;
constexpr uint64_t kFront = 0xfdfdfdfdfdfdfdfd;

struct Header {
  uint64_t seal;  // its own address, mixed with what state the block is in
  size_t bytes;
  Stack *allocated, *freed;
  char* base;   // of the allocator's block
  char* guard;  // the page that must not be touched; nullptr without
  Sample* sample;
  uint64_t recorded;  // its number in the recording of requests; 0: it is not in it
  uint64_t unused;
  uint64_t front;  // the red zone before the block
};
static_assert(sizeof(Header) % 16 == 0);

Settings g_settings;
std::atomic<size_t> g_note_from{SIZE_MAX};
std::atomic<uint32_t> g_guards{0};
struct sigaction g_previous;

// The quarantine: a ring, first in first out.
constinit Lock g_lock;
Header** g_waiting = nullptr;
size_t g_first = 0, g_count = 0;
uint64_t g_waiting_bytes = 0;

size_t os_page() {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

char* user_of(Header* h) { return reinterpret_cast<char*>(h + 1); }
uint64_t seal(const Header* h, uint64_t state) { return reinterpret_cast<uintptr_t>(h) ^ state; }
char* zone_end(Header* h) { return h->guard != nullptr ? h->guard : user_of(h) + h->bytes + kTail; }
// Of a guarded block in quarantine the whole OS pages are unreadable; these bytes are not.
size_t readable_bytes(Header* h) {
  if (h->guard == nullptr) return h->bytes;
  const auto user = reinterpret_cast<uintptr_t>(user_of(h));
  return std::min(h->bytes, round_up(user, os_page()) - user);
}

const char* last_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void print_stack(Text& out, const char* title, const Stack* stack) {
  if (stack == nullptr) return;
  out.add("  ").add(title).add("\n");
  for (unsigned i = 0; i < stack->python; ++i) {
    const PythonPlace* p = python_place(static_cast<uint32_t>(stack->frame[stack->native + i]));
    if (p == nullptr) continue;
    out.add("    ")
        .add(p->file())
        .add(":")
        .number(p->line)
        .add(" in ")
        .add(p->function())
        .add("\n");
  }
  bool ours = true;  // the innermost frames are this library's
  for (unsigned i = 0; i < stack->native; ++i) {
    const uintptr_t pc = stack->frame[i];
    Dl_info info{}, self{};
    dladdr(reinterpret_cast<void*>(pc - 1), &info);
    dladdr(reinterpret_cast<void*>(&print_stack), &self);
    ours = ours && info.dli_fbase == self.dli_fbase;
    if (ours) continue;
    out.add("    0x").hex(pc);
    if (info.dli_sname != nullptr) out.add(" ").add(info.dli_sname);
    if (info.dli_fname != nullptr) {
      out.add(" (").add(last_name(info.dli_fname)).add("+0x");
      out.hex(pc - reinterpret_cast<uintptr_t>(info.dli_fbase)).add(")");
    }
    out.add("\n");
  }
}

// Says what is wrong with which block. `h`: nullptr where there is none.
void report(const char* what, const void* at, const Header* h) {
  const int saved = errno;
  {
    Text out(STDERR_FILENO);
    out.add("flatout: error: malloc: ").add(what).add(": 0x").hex(reinterpret_cast<uintptr_t>(at));
    if (h != nullptr) {
      const auto user = reinterpret_cast<uintptr_t>(h + 1);
      out.add(", block of ").number(h->bytes).add(" bytes at 0x").hex(user);
    }
    out.add("\n");
    print_stack(out, "found at", note_stack());
    if (h != nullptr) {
      print_stack(out, "freed at", h->freed);
      print_stack(out, "allocated at", h->allocated);
    }
  }
  errno = saved;
  if (g_settings.abort) std::abort();
}

// The first byte in [begin, end) that is not `wanted`; nullptr if all are.
const char* first_other(const char* begin, const char* end, unsigned char wanted) {
  const char* at = std::find_if(
      begin, end, [wanted](char c) { return static_cast<unsigned char>(c) != wanted; });
  return at == end ? nullptr : at;
}

// The header of the block that begins at p; nullptr, and said, where that is none in use.
Header* live_header(void* p) {
  uintptr_t offset;
  auto* h = static_cast<Header*>(p) - 1;
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0 || !in_range(h, offset)) {
    report("not the start of a block", p, nullptr);
    return nullptr;
  }
  const uint64_t found = __atomic_load_n(&h->seal, __ATOMIC_ACQUIRE);
  if (found == seal(h, kLiveSeal)) return h;
  if (found == seal(h, kFreedSeal)) {
    report("freed twice", p, h);
  } else {
    report("not the start of a block, or its header was written over", p, nullptr);
  }
  return nullptr;
}

void check_zones(Header* h) {
  if (!g_settings.check) return;
  if (h->front != kFront) report("written before the block", user_of(h) - sizeof h->front, h);
  const char* wrong = first_other(user_of(h) + h->bytes, zone_end(h), kZone);
  if (wrong != nullptr) report("written beyond the block", wrong, h);
}

// Gives a block back to the allocator, after a last look at what was its memory.
void release(Header* h) {
  if (h->guard != nullptr) {
    char* const from = user_of(h) + readable_bytes(h);
    const auto size = static_cast<size_t>(h->guard - from) + os_page();
    g_guards.fetch_sub(1, std::memory_order_relaxed);
    if (!os_protect(from, size, true)) return;  // lost, rather than handed out unreadable
  }
  if (g_settings.check) {
    const char* wrong = first_other(user_of(h), user_of(h) + readable_bytes(h), kFreed);
    if (wrong != nullptr) report("written after it was freed", wrong, h);
  }
  h->seal = 0;
  malloc::deallocate(h->base);
}

// What a block in quarantine takes of its limit: a guarded one keeps hardly more than its
// addresses.
uint64_t cost_of(Header* h) {
  return sizeof(Header) + (h->guard == nullptr ? h->bytes : os_page() + h->bytes / 64);
}

void wait_in_quarantine(Header* h) {
  constexpr unsigned kMostOut = 16;
  Header* out[kMostOut];
  unsigned n = 0;
  {
    const LockHolder hold(g_lock);
    if (g_waiting == nullptr) {
      g_waiting = static_cast<Header**>(os_map(kMostWaiting * sizeof(Header*)));
    }
    if (g_waiting == nullptr) {
      out[n++] = h;
    } else {
      while (n < kMostOut && g_count != 0 &&
             (g_count == kMostWaiting || g_waiting_bytes + cost_of(h) > g_settings.quarantine)) {
        out[n] = g_waiting[g_first];
        g_waiting_bytes -= cost_of(out[n++]);
        g_first = (g_first + 1) % kMostWaiting;
        --g_count;
      }
      g_waiting[(g_first + g_count++) % kMostWaiting] = h;
      g_waiting_bytes += cost_of(h);
    }
  }
  for (unsigned i = 0; i < n; ++i) release(out[i]);
}

// The block of a guarded one that holds `at`, in use or freed; nullptr if there is none.
Header* guarded_block(uintptr_t offset) {
  constexpr uint32_t kMostPages = 1 << 20;
  uint32_t page = static_cast<uint32_t>(offset >> kPageShift);
  for (uint32_t looked = 0; looked < kMostPages; ++looked, --page) {
    const Span* s = g_range.spans + g_range.map[page];
    if (s->kind == Kind::kLarge && s->first_page == page) {
      Header* h = nullptr;
      std::memcpy(&h, page_address(page), sizeof h);
      uintptr_t inside;
      if (!in_range(h, inside) || reinterpret_cast<uintptr_t>(h) % 16 != 0) return nullptr;
      return h->base == page_address(page) ? h : nullptr;
    }
    if (page == 0) break;
  }
  return nullptr;
}

// A touch of a guard page, or of a large block in quarantine. Anything else is not ours to explain.
void on_fault(int signal, siginfo_t* info, void* context) {
  uintptr_t offset;
  if (in_range(info->si_addr, offset)) {
    if (const Header* h = guarded_block(offset)) {
      g_settings.abort = false;  // the fault itself ends the process, with its own signal
      report(h->seal == seal(h, kFreedSeal) ? "used after it was freed" : "used beyond the block",
             info->si_addr, h);
    }
  }
  // As it would have been without us: the instruction faults again.
  if ((g_previous.sa_flags & SA_SIGINFO) != 0 && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, context);
  } else if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);
  }
}

void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

// Room for header, block and guard page, the block's end as near to the guard as its alignment
// allows. nullptr without memory.
Header* allocate_guarded(size_t alignment, size_t bytes) {
  const size_t page = os_page(), body = round_up(bytes, alignment);
  const size_t total = page + round_up(body, page) + page;
  auto* const base = static_cast<char*>(malloc::allocate_aligned(kPageBytes, total));
  if (base == nullptr) return nullptr;
  char* const guard = base + total - page;
  auto* h = reinterpret_cast<Header*>(guard - body) - 1;
  h->base = base;
  h->guard = os_protect(guard, page, false) ? guard : nullptr;
  if (h->guard == nullptr) {
    malloc::deallocate(base);
    return nullptr;
  }
  std::memcpy(base, &h, sizeof h);  // for guarded_block()
  g_guards.fetch_add(1, std::memory_order_relaxed);
  return h;
}

Header* allocate_plain(size_t alignment, size_t bytes) {
  const size_t lead = round_up(sizeof(Header), alignment);
  auto* const base = static_cast<char*>(malloc::allocate_aligned(alignment, lead + bytes + kTail));
  if (base == nullptr) return nullptr;
  auto* h = reinterpret_cast<Header*>(base + lead) - 1;
  h->base = base;
  h->guard = nullptr;
  return h;
}

void* make_block(size_t alignment, size_t bytes, bool zero) {
  alignment = std::max<size_t>(alignment, 16);
  if (bytes > SIZE_MAX / 4 || alignment > SIZE_MAX / 4) return no_memory();
  Header* h = nullptr;
  if (g_settings.check && bytes >= kGuardFrom && alignment <= os_page() &&
      g_guards.load(std::memory_order_relaxed) < kMostGuards) {
    h = allocate_guarded(alignment, bytes);
  }
  if (h == nullptr) h = allocate_plain(alignment, bytes);
  const bool recorded = is_recorded(bytes);
  if (h == nullptr) {
    if (recorded) record_refused(bytes, note_stack());
    return nullptr;
  }
  h->bytes = bytes;
  h->front = kFront;
  h->freed = nullptr;
  h->sample =
      bytes >= g_note_from.load(std::memory_order_relaxed) ? take_sample(bytes, 1) : nullptr;
  h->allocated = nullptr;
  if (g_settings.check || recorded) {
    h->allocated = h->sample != nullptr ? h->sample->stack : note_stack();
  }
  h->recorded = recorded ? record_allocated(bytes, h->allocated) : 0;
  if (g_settings.check) {
    if (!zero) std::memset(user_of(h), kFresh, bytes);
    std::memset(user_of(h) + bytes, kZone, static_cast<size_t>(zone_end(h) - user_of(h)) - bytes);
  }
  if (zero) std::memset(user_of(h), 0, bytes);
  __atomic_store_n(&h->seal, seal(h, kLiveSeal), __ATOMIC_RELEASE);
  return user_of(h);
}

}  // namespace

void* allocate(size_t bytes) { return make_block(16, bytes, false); }

void* allocate_aligned(size_t alignment, size_t bytes) {
  return make_block(alignment, bytes, false);
}

void* allocate_zeroed(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return no_memory();
  return make_block(16, total, true);
}

void deallocate(void* p) {
  uintptr_t offset;
  if (p == nullptr) return;
  if (!in_range(p, offset)) return free_foreign(p);
  Header* h = live_header(p);
  if (h == nullptr) return;
  check_zones(h);
  uint64_t live = seal(h, kLiveSeal);
  if (!__atomic_compare_exchange_n(&h->seal, &live, seal(h, kFreedSeal), false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED)) {
    return report("freed twice", p, h);
  }
  if (h->sample != nullptr) drop_sample(h->sample);
  record_freed(h->recorded);
  if (!g_settings.check) return release(h);
  h->freed = note_stack();
  std::memset(p, kFreed, readable_bytes(h));
  if (h->guard != nullptr) {
    char* const from = user_of(h) + readable_bytes(h);
    const auto size = static_cast<size_t>(h->guard - from);
    if (size != 0 && os_protect(from, size, false)) os_release(from, size);
  }
  wait_in_quarantine(h);
}

void* reallocate(void* p, size_t bytes) {
  uintptr_t offset;
  if (p == nullptr) return allocate(bytes);
  if (!in_range(p, offset)) return reallocate_foreign(p, bytes, allocate);
  if (bytes == 0) {
    deallocate(p);
    return nullptr;
  }
  Header* h = live_header(p);
  if (h == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  void* to = allocate(bytes);
  if (to == nullptr) return nullptr;
  std::memcpy(to, p, std::min(h->bytes, bytes));
  deallocate(p);
  return to;
}

size_t usable_size(const void* p) {
  uintptr_t offset;
  if (p == nullptr) return 0;
  if (!in_range(p, offset)) return usable_size_foreign(p);
  const Header* h = live_header(const_cast<void*>(p));
  return h == nullptr ? 0 : h->bytes;
}

size_t purge() { return malloc::purge(); }

void start(const Settings& settings) {
  g_settings = settings;
  if (!settings.check) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &g_previous);
}

void finish() {
  if (!g_settings.check) return;
  const LockHolder hold(g_lock);
  for (size_t i = 0; i < g_count; ++i) {
    Header* h = g_waiting[(g_first + i) % kMostWaiting];
    const char* wrong = first_other(user_of(h), user_of(h) + readable_bytes(h), kFreed);
    if (wrong != nullptr) report("written after it was freed", wrong, h);
  }
}

void lock_debug() {
  g_lock.lock();
  lock_recording();
}
void unlock_debug() {
  unlock_recording();
  g_lock.unlock();
}
void reset_debug() {
  reset_recording();
  g_lock.reset();
}

void note_from(size_t least) { g_note_from.store(least, std::memory_order_relaxed); }

}  // namespace flatout::malloc::debug

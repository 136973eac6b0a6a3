#include "devlimit/books.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "devlimit/measure.h"
#include "devlimit/pools.h"
#include "devlimit/real.h"
#include "devlimit/record.h"
#include "devlimit/say.h"
#include "devlimit/spec.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuCtxGetCurrent(Opaque* context);
CUresult cuCtxPushCurrent_v2(Opaque context);
CUresult cuCtxPopCurrent_v2(Opaque* context);
CUresult cuStreamGetCtx(Opaque stream, Opaque* context);
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device);
}

namespace {

__attribute__((tls_model("initial-exec"))) __thread int t_depth = 0;

// Hooked calls under way in this process. A measurement that saw none of them may take charges
// back; any other would take a request that is charged and not yet served for too much overhead.
std::atomic<uint64_t> g_started{0}, g_ended{0};

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
constinit Books g_books;
std::atomic<Ledger*> g_ledger{nullptr};
std::atomic<int> g_row[kMostDevices];      // by ordinal; row + 1
std::atomic<int> g_ordinal[kMostDevices];  // by row; ordinal + 1
CUuuid g_uuid[kMostDevices];               // by row

void before_fork() { pthread_mutex_lock(&g_lock); }
void in_parent() { pthread_mutex_unlock(&g_lock); }
// CUDA does not survive fork: the child holds nothing. The books' memory is left behind.
void in_child() {
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  memset(static_cast<void*>(&g_books), 0, sizeof g_books);
  for (GraphMemory& memory : g_books.graphs) memory.round = 1;
  g_ended.store(g_started.load());
  if (Ledger* const open = g_ledger.load()) open->forked();
  forget_records();
}

uint64_t key_of(const CUuuid& uuid) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : uuid.bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash != 0 ? hash : 1;
}

CUuuid uuid_of_ordinal(CUdevice ordinal) {
  CUuuid uuid = {};
  if (FLATOUT_REAL(cuDeviceGetUuid, cuDeviceGetUuid_v2, &uuid, ordinal) != CUDA_SUCCESS &&
      FLATOUT_REAL(cuDeviceGetUuid, cuDeviceGetUuid, &uuid, ordinal) != CUDA_SUCCESS) {
    memcpy(uuid.bytes, &ordinal, sizeof ordinal);
    uuid.bytes[15] = 1;
  }
  return uuid;
}

int new_row(const CUuuid& uuid, uint64_t limit) {
  Ledger* const all = ledger();
  const int row = all != nullptr ? all->device(key_of(uuid), limit) : -1;
  if (row >= 0) g_uuid[row] = uuid;
  return row;
}

// Memory that reaches the card by ways that no hook sees shows in the driver's own figure. It is
// looked at once in a while, by whoever asks for memory.
void look_once_a_second(int row) {
  static std::atomic<int64_t> last[kMostDevices];
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  int64_t before = last[row].load();
  if (before == now.tv_sec || !last[row].compare_exchange_strong(before, now.tv_sec)) return;
  settle_overhead(row, false);
}

}  // namespace

Outermost::Outermost() : outermost_(t_depth++ == 0) {
  if (outermost_) g_started.fetch_add(1);
}
Outermost::~Outermost() {
  --t_depth;
  if (outermost_) g_ended.fetch_add(1);
}

Locked::Locked() { pthread_mutex_lock(&g_lock); }
Locked::~Locked() { pthread_mutex_unlock(&g_lock); }

Books& books() { return g_books; }

Physical* new_physical() {
  if (g_books.unused == nullptr) {
    constexpr size_t kCount = 1024;
    void* const memory = ::mmap(nullptr, kCount * sizeof(Physical), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    for (size_t i = 0; i < kCount; ++i) drop(static_cast<Physical*>(memory) + i);
  }
  Physical* const out = g_books.unused;
  g_books.unused = out->next;
  *out = {};
  return out;
}

void drop(Physical* physical) {
  physical->next = g_books.unused;
  g_books.unused = physical;
}

Ledger* ledger() {
  Ledger* open = g_ledger.load(std::memory_order_acquire);
  if (open != nullptr) return open;
  const Locked lock;
  open = g_ledger.load(std::memory_order_acquire);
  if (open != nullptr) return open;
  open = Ledger::open(::getenv("FLATOUT_DEVLIMIT_SHARED"));
  if (open == nullptr) return nullptr;
  pthread_atfork(before_fork, in_parent, in_child);
  g_ledger.store(open, std::memory_order_release);
  return open;
}

int row_of(CUdevice ordinal) {
  if (ordinal < 0 || ordinal >= kMostDevices) return -1;
  const int known = g_row[ordinal].load(std::memory_order_acquire);
  if (known != 0) return known - 1;
  size_t total = 0;
  if (FLATOUT_REAL(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2, &total, ordinal) != CUDA_SUCCESS)
    return -1;
  const int row =
      new_row(uuid_of_ordinal(ordinal), limit_of(::getenv("FLATOUT_DEVLIMIT"), ordinal, total));
  if (row < 0) return -1;
  g_ordinal[row].store(ordinal + 1);
  g_row[ordinal].store(row + 1, std::memory_order_release);
  return row;
}

int row_of_current() {
  CUdevice device = -1;
  if (FLATOUT_REAL(cuCtxGetDevice, cuCtxGetDevice, &device) != CUDA_SUCCESS) return -1;
  return row_of(device);
}

Opaque current_context() {
  Opaque context = nullptr;
  FLATOUT_REAL(cuCtxGetCurrent, cuCtxGetCurrent, &context);
  return context;
}

int row_of_stream(Opaque stream) {
  constexpr uintptr_t kLastSpecial = 2;  // none, legacy, per thread
  Opaque context = nullptr;
  if (reinterpret_cast<uintptr_t>(stream) <= kLastSpecial ||
      FLATOUT_REAL(cuStreamGetCtx, cuStreamGetCtx, stream, &context) != CUDA_SUCCESS ||
      FLATOUT_REAL(cuCtxPushCurrent_v2, cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
    return row_of_current();
  const int row = row_of_current();
  FLATOUT_REAL(cuCtxPopCurrent_v2, cuCtxPopCurrent_v2, &context);
  return row;
}

CUdevice ordinal_of(int row) { return g_ordinal[row].load() - 1; }

int row_of_uuid(const CUuuid& uuid) {
  Ledger* const all = ledger();
  return all != nullptr ? all->find(key_of(uuid)) : -1;
}

CUuuid uuid_of(int row) { return g_uuid[row]; }

void relieve(int row) {
  trim_pools(row);
  trim_graphs(row);
}

bool charge(int row, uint64_t bytes) {
  if (row < 0) return true;
  Ledger* const all = ledger();
  look_once_a_second(row);
  if (all->charge(row, bytes)) return true;
  relieve(row);
  if (all->charge(row, bytes)) return true;
  say("a request for %llu bytes passes the limit of %llu on device %d, of which %llu are in use",
      static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(all->limit(row)),
      ordinal_of(row), static_cast<unsigned long long>(all->used(row)));
  const Locked lock;
  record_refused(row, bytes);
  return false;
}

void give_back(int row, uint64_t bytes) {
  if (row >= 0) ledger()->give_back(row, bytes);
}

bool measurable(int row) { return row >= 0 && own_bytes(uuid_of(row)) != kUnknown; }

bool settle_overhead(int row, bool may_shrink) {
  if (row < 0) return true;
  Ledger* const all = ledger();
  const uint64_t ended = g_ended.load(), started = g_started.load();
  const auto counted_now = [&] { return all->own(row) - g_books.overhead[row]; };  // under Locked
  uint64_t before = 0;
  {
    const Locked lock;
    before = counted_now();
  }
  const uint64_t measured = own_bytes(uuid_of(row));
  if (measured == kUnknown) return true;
  // 1: the call that asks.
  const bool alone = started - ended == 1 && g_started.load() == started;
  const Locked lock;
  uint64_t& overhead = g_books.overhead[row];
  // What another thread gave back meanwhile may have been measured still: it is no overhead.
  const uint64_t after = counted_now(), counted = before > after ? before : after;
  const uint64_t now = measured > counted ? measured - counted : 0;
  if (now > overhead) {
    const uint64_t more = now - overhead;
    overhead = now;
    if (all->charge(row, more)) return true;
    all->charge_anyway(row, more);
    return false;
  }
  if (may_shrink && alone) {
    all->give_back(row, overhead - now);
    overhead = now;
  }
  return true;
}

}  // namespace flatout::devlimit

#include "devlimit/books.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "devlimit/async_free.h"
#include "devlimit/capture_mode.h"
#include "devlimit/measure.h"
#include "devlimit/pages.h"
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
pthread_mutex_t g_primary[kMostDevices];  // by ordinal; zeros are PTHREAD_MUTEX_INITIALIZER
constinit Books g_books;
std::atomic<Ledger*> g_ledger{nullptr};
std::atomic<int> g_row[kMostDevices];      // by ordinal; row + 1
std::atomic<int> g_ordinal[kMostDevices];  // by row; ordinal + 1
CUuuid g_uuid[kMostDevices];               // by row
std::atomic_flag g_settling = ATOMIC_FLAG_INIT;

void before_fork() { pthread_mutex_lock(&g_lock); }
void in_parent() { pthread_mutex_unlock(&g_lock); }
// CUDA does not survive fork: the child holds nothing. The books' memory is left behind.
void in_child() {
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  for (pthread_mutex_t& lock : g_primary) lock = PTHREAD_MUTEX_INITIALIZER;
  memset(static_cast<void*>(&g_books), 0, sizeof g_books);
  for (GraphMemory& memory : g_books.graphs) memory.round = 1;
  g_ended.store(g_started.load());
  g_settling.clear();
  forget_measurements();
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

// Compares what the driver says with what is charged. A look in passing gives back only what an
// earlier one charged, or what could not be given back when it went: what NVML does not count as
// this process's (memory of others, managed memory elsewhere) would hide a context's share.
bool compare_overhead(int row, bool look) {
  Ledger* const all = ledger();
  end_frees(row);
  const uint64_t ended = g_ended.load(), started = g_started.load();
  all->watch(row);
  const uint64_t measured = own_bytes(uuid_of(row));
  if (measured == kUnknown) return true;
  // 1: the call that asks.
  const bool alone = started - ended == 1 && g_started.load() == started;
  const Locked lock;
  uint64_t &overhead = g_books.overhead[row], &unsure = g_books.unsure[row];
  // Requests are charged before the driver is asked, and until it is done with the free: what other
  // threads took and gave back meanwhile, and was measured, is within the most that was charged.
  const uint64_t counted = all->most_own(row) - overhead;
  const uint64_t now = measured > counted ? measured - counted : 0;
  if (now > overhead) {
    const uint64_t more = now - overhead;
    overhead = now;
    if (look) unsure += more;
    if (all->charge(row, more)) return true;
    all->charge_anyway(row, more);
    return false;
  }
  if (!alone) {  // of a request that is charged and not yet served nothing is known
    if (!look) unsure = overhead;
    return true;
  }
  const uint64_t surplus = overhead - now, back = look && surplus > unsure ? unsure : surplus;
  all->give_back(row, back);
  overhead -= back;
  unsure = look ? unsure - back : 0;
  return true;
}

bool compare_overhead_alone(int row, bool look) {
  if (row < 0) return true;
  if (g_settling.test_and_set(std::memory_order_acquire)) {  // another thread does right now
    const Locked lock;
    if (!look) g_books.unsure[row] = g_books.overhead[row];
    return true;
  }
  const bool fits = compare_overhead(row, look);
  g_settling.clear(std::memory_order_release);
  return fits;
}

constexpr int64_t kLookNs = 1'000'000'000, kLookNearLimitNs = 20'000'000;
constexpr uint64_t kNearLimit = uint64_t{128} << 20;

// Memory that reaches the card by ways that no hook sees shows in the driver's own figure. It is
// looked at once in a while, by whoever asks for memory; more often where little is left: what a
// kernel's first launch takes must not pass the limit.
void look_in_passing(int row, uint64_t bytes) {
  static std::atomic<int64_t> last[kMostDevices];
  timespec clock = {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &clock);
  const int64_t now = clock.tv_sec * 1'000'000'000 + clock.tv_nsec;
  const uint64_t limit = ledger()->limit(row), used = ledger()->used(row);
  const bool near = used >= limit || limit - used < kNearLimit || limit - used - kNearLimit < bytes;
  int64_t before = last[row].load();
  if (before != 0 && now - before < (near ? kLookNearLimitNs : kLookNs)) return;
  if (last[row].compare_exchange_strong(before, now)) compare_overhead_alone(row, true);
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

PrimaryLocked::PrimaryLocked(CUdevice device)
    : lock_(g_primary[static_cast<unsigned>(device) % kMostDevices]) {
  pthread_mutex_lock(&lock_);
}
PrimaryLocked::~PrimaryLocked() { pthread_mutex_unlock(&lock_); }

Books& books() { return g_books; }

Physical* new_physical() { return from_spare(g_books.unused); }

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

Opaque home_of(Opaque context) {
  return g_books.table.find(Kind::kGuessed, reinterpret_cast<uint64_t>(context)) != nullptr
             ? context
             : nullptr;
}

InContextOf::InContextOf(Opaque stream) {
  constexpr uintptr_t kLastSpecial = 2;  // none, legacy, per thread
  Opaque context = nullptr;
  pushed_ = reinterpret_cast<uintptr_t>(stream) > kLastSpecial &&
            FLATOUT_REAL(cuStreamGetCtx, cuStreamGetCtx, stream, &context) == CUDA_SUCCESS &&
            FLATOUT_REAL(cuCtxPushCurrent_v2, cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
}
InContextOf::~InContextOf() {
  Opaque context = nullptr;
  if (pushed_) FLATOUT_REAL(cuCtxPopCurrent_v2, cuCtxPopCurrent_v2, &context);
}

int row_of_stream(Opaque stream) {
  const InContextOf current(stream);
  return row_of_current();
}

CUdevice ordinal_of(int row) { return g_ordinal[row].load() - 1; }

int row_of_uuid(const CUuuid& uuid) {
  Ledger* const all = ledger();
  return all != nullptr ? all->find(key_of(uuid)) : -1;
}

CUuuid uuid_of(int row) { return g_uuid[row]; }

void relieve(int row) {
  end_frees(row);
  const RelaxedCapture relaxed;
  trim_pools(row);
  trim_graphs(row);
}

bool charge(int row, uint64_t bytes) {
  if (row >= 0) look_in_passing(row, bytes);
  return charge_taken(row, bytes);
}

bool charge_taken(int row, uint64_t bytes) {
  if (row < 0) return true;
  Ledger* const all = ledger();
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

bool settle_overhead(int row) { return compare_overhead_alone(row, false); }

}  // namespace flatout::devlimit

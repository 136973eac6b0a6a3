// The C functions of flatout/devmem.h.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "devmem/device_pool.h"
#include "devmem/installed.h"
#include "devmem/installed_alloc.h"

using namespace flatout;
using devmem::Address;
using devmem::DevicePool;
using devmem::Installed;
using devmem::Stream;

// Never made: a pool of ours behind the name that C knows.
struct flatout_devmem_pool;

namespace {

thread_local std::string last_error;

void note(const Error& error) {
  last_error = error.hint.empty() ? error.message : error.message + "; " + error.hint;
}
int code_of(const Status& status) {
  if (status.ok()) return 0;
  note(status.error());
  return -1;
}

DevicePool& inside(flatout_devmem_pool* pool) { return *reinterpret_cast<DevicePool*>(pool); }
flatout_devmem_pool* outside(DevicePool* pool) {
  return reinterpret_cast<flatout_devmem_pool*>(pool);
}
Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
Stream stream_of(const void* stream) { return reinterpret_cast<Stream>(stream); }

// Each text once: what is wrong is wrong at every request.
void say_once(const std::string& text) {
  static std::mutex mutex;
  static auto& said = *new std::vector<std::string>;
  const std::lock_guard lock(mutex);
  if (said.size() >= 20 || std::find(said.begin(), said.end(), text) != said.end()) return;
  said.push_back(text);
  log_warning("devmem: " + escape_terminal(text));
}

}  // namespace

void* devmem::installed_alloc(size_t bytes, int device, void* stream, const void* caller) {
  if (bytes == 0) return nullptr;
  last_error.clear();
  const auto pool = Installed::get().pool_for(device, stream_of(stream));
  if (!pool.ok()) {
    note(pool.error());
    say_once(last_error);
    return nullptr;
  }
  const auto got = (*pool)->allocate(bytes, stream_of(stream), caller);
  if (got.ok()) return reinterpret_cast<void*>(*got);
  note(got.error());
  if (got.error().code != Code::kFull) say_once(last_error);
  return nullptr;
}

extern "C" {

const char* flatout_devmem_error(void) { return last_error.c_str(); }

flatout_devmem_pool* flatout_devmem_open(const struct flatout_devmem_options* given) {
  last_error.clear();
  const flatout_devmem_options options = given != nullptr ? *given : flatout_devmem_options{};
  if (options.kind < FLATOUT_DEVMEM_CUDA || options.kind > FLATOUT_DEVMEM_SIMULATED) {
    note({Code::kBadInput, "there is no such kind of device",
          "FLATOUT_DEVMEM_CUDA, _HOST or _SIMULATED"});
    return nullptr;
  }
  const auto card = devmem::card_of(static_cast<devmem::DeviceKind>(options.kind), options.device,
                                    options.capacity_bytes);
  if (!card.ok()) return note(card.error()), nullptr;
  devmem::PoolOptions wanted = devmem::options_of_environment();
  if (options.policy != nullptr) wanted.policy = options.policy;
  wanted.limit = options.limit_bytes;
  wanted.name = "device " + std::to_string(options.device);
  auto pool = DevicePool::open(*card, std::move(wanted));
  if (!pool.ok()) return note(pool.error()), nullptr;
  return outside(pool->release());
}

void flatout_devmem_close(flatout_devmem_pool* pool) {
  if (pool != nullptr) delete &inside(pool);
}

void* flatout_devmem_allocate(flatout_devmem_pool* pool, size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const auto got = inside(pool).allocate(bytes, stream_of(stream), __builtin_return_address(0));
  if (got.ok()) return reinterpret_cast<void*>(*got);
  note(got.error());
  return nullptr;
}

int flatout_devmem_deallocate(flatout_devmem_pool* pool, void* ptr, size_t bytes, void* stream) {
  if (ptr == nullptr) return 0;
  const Status freed =
      inside(pool).free(address_of(ptr), bytes, stream_of(stream), __builtin_return_address(0));
  if (!freed.ok() && !inside(pool).options().debug) say_once(freed.error().message);
  return code_of(freed);
}

int flatout_devmem_record_stream(flatout_devmem_pool* pool, void* ptr, void* stream) {
  return code_of(inside(pool).use_on(address_of(ptr), stream_of(stream)));
}

void flatout_devmem_trim(flatout_devmem_pool* pool) { inside(pool).trim(); }

void flatout_devmem_get_stats(flatout_devmem_pool* pool, struct flatout_devmem_stats* stats,
                              size_t size) {
  const devmem::PoolStats s = inside(pool).stats();
  const flatout_devmem_stats out = {s.live,        s.peak_live,    s.reserved,    s.peak_reserved,
                                    s.limit,       s.largest_free, s.waiting,     s.allocated_total,
                                    s.freed_total, s.blocks,       s.allocations, s.frees,
                                    s.refused,     s.driver_calls, s.device_free, s.device_total};
  std::memcpy(stats, &out, std::min(size, sizeof out));
}

void flatout_devmem_reset_peaks(flatout_devmem_pool* pool) { inside(pool).reset_peaks(); }

int flatout_devmem_snapshot(flatout_devmem_pool* pool, const char* path) {
  return code_of(inside(pool).snapshot(path));
}

int flatout_devmem_configure(const char* policy, const char* limits) {
  return code_of(
      Installed::get().configure(policy != nullptr ? policy : "", limits != nullptr ? limits : ""));
}

void flatout_devmem_set_fraction(double fraction, int device) {
  Installed::get().set_fraction(device, fraction);
}

void* flatout_devmem_alloc(size_t bytes, int device, void* stream) {
  return devmem::installed_alloc(bytes, device, stream, __builtin_return_address(0));
}

void flatout_devmem_free(void* ptr, size_t bytes, int device, void* stream) {
  if (ptr == nullptr) return;
  DevicePool* const pool = Installed::get().holder(device, address_of(ptr));
  if (pool == nullptr) return;  // a forked process frees what it has inherited
  const Status freed =
      pool->free(address_of(ptr), bytes, stream_of(stream), __builtin_return_address(0));
  if (!freed.ok() && !pool->options().debug) say_once(freed.error().message);
}

void flatout_devmem_use_on(void* ptr, void* stream) {
  for (int device = 0; device < Installed::kMostDevices; ++device) {
    for (int i = 0; i < Installed::get().pools(device); ++i)
      if (Installed::get().pool(device, i)->use_on(address_of(ptr), stream_of(stream)).ok()) return;
  }
}

void flatout_devmem_empty_cache(void) { Installed::get().trim(); }

int flatout_devmem_pools(int device) { return Installed::get().pools(device); }

flatout_devmem_pool* flatout_devmem_pool_of(int device, int index) {
  return outside(Installed::get().pool(device, index));
}

int flatout_devmem_bind(int device, void* stream, int index) {
  return code_of(Installed::get().bind(device, stream_of(stream), index));
}

}  // extern "C"

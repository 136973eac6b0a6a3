#include "devmem/installed.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "base/text.h"
#include "devmem/cuda_driver.h"
#include "devmem/host_driver.h"
#include "devmem/sim_driver.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kSimulatedBytes = Bytes{16} << 30;

// CUDA does not survive fork, and locks may be held for ever in the child.
std::atomic<bool> g_forked{false};

std::string variable(const char* name) {
  const char* const value = ::getenv(name);
  return value != nullptr ? value : "";
}

bool is_on(const std::string& value) { return !value.empty() && value != "0"; }

}  // namespace

Result<std::shared_ptr<Card>> card_of(DeviceKind kind, int device, Bytes capacity) {
  static std::mutex mutex;
  static auto& cards = *new std::map<std::pair<DeviceKind, int>, std::weak_ptr<Card>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Card>& known = cards[{kind, device}];
  if (auto card = known.lock()) return card;
  std::unique_ptr<Driver> driver;
  if (kind == DeviceKind::kCuda) {
    FLATOUT_TRY(driver, CudaDriver::open(device));
  } else if (kind == DeviceKind::kHost) {
    driver = std::make_unique<HostDriver>(capacity);
  } else {
    driver = std::make_unique<SimDriver>(capacity > 0 ? capacity : kSimulatedBytes);
  }
  auto card = std::make_shared<Card>(std::move(driver));
  known = card;
  return card;
}

PoolOptions options_of_environment() {
  PoolOptions out;
  const std::string debug = variable("FLATOUT_DEVMEM_DEBUG");
  out.debug = is_on(debug);
  out.abort = debug == "abort";
  out.sites = is_on(variable("FLATOUT_DEVMEM_SITES"));
  out.record_to = variable("FLATOUT_DEVMEM_RECORD");
  if (const auto kept = parse_number<size_t>(variable("FLATOUT_DEVMEM_HISTORY")))
    out.kept = std::min<size_t>(*kept, 10'000'000);
  return out;
}

Installed& Installed::get() {
  static Installed& only = *new Installed;
  return only;
}

Installed::Installed() {
  ::pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
  std::atexit([] { get().flush(); });
}

Status Installed::configure(std::string_view policy, std::string_view limits) {
  const std::lock_guard lock(mutex_);
  if (in_use_)
    return Error{Code::kDenied, "Flatout's pools have given out memory already",
                 "choose policy and limits before the first tensor on a card"};
  std::vector<DeviceLimits> read;
  if (!limits.empty()) {
    FLATOUT_TRY(read, parse_limits(limits));
  }
  if (policy.empty()) policy = "arena";
  FLATOUT_TRY(const auto pool, DevicePool::open(card_of(DeviceKind::kSimulated, -1, 0).value(),
                                                PoolOptions{std::string(policy)}));
  policy_ = policy;
  limits_ = std::move(read);
  return {};
}

void Installed::set_fraction(int device, double fraction) {
  const std::lock_guard lock(mutex_);
  if (device < 0 || device >= kMostDevices || !(fraction > 0) || fraction > 1) return;
  if (opened(device) != nullptr) {
    log_warning(fmt::format("devmem: the fraction of device {} comes too late: its pools are open",
                            device));
    return;
  }
  fractions_[device] = fraction;
}

std::vector<Limit> Installed::limits_of(int device) const {
  std::vector<Limit> out = {Limit{}};
  for (const DeviceLimits& one : limits_)
    if (one.device == device || one.device < 0) out = one.limits;
  const auto fraction = fractions_.find(device);
  if (fraction != fractions_.end() && out.size() == 1 && out[0].bytes == 0)
    out[0].fraction = std::min(out[0].fraction, fraction->second);
  return out;
}

const Installed::Device* Installed::opened(int device) const {
  if (g_forked || device < 0 || device >= kMostDevices) return nullptr;
  return devices_[device].load(std::memory_order_acquire);
}

Result<Installed::Device*> Installed::open(int device) {
  if (g_forked)
    return Error{Code::kGone, "CUDA cannot be used in a process that was forked after it began",
                 "start workers with the spawn method"};
  if (device < 0 || device >= kMostDevices)
    return Error{Code::kNotFound, fmt::format("there is no device {}", device), ""};
  if (Device* const there = devices_[device].load(std::memory_order_acquire)) return there;
  const std::lock_guard lock(mutex_);
  if (Device* const there = devices_[device].load()) return there;
  FLATOUT_TRY(const auto card, card_of(DeviceKind::kCuda, device, 0));
  auto made = std::make_unique<Device>();
  const std::vector<Limit> limits = limits_of(device);
  for (size_t i = 0; i < limits.size(); ++i) {
    PoolOptions options = options_of_environment();
    options.policy = policy_;
    options.user = "PyTorch";
    const bool whole = limits[i].bytes == 0 && limits[i].fraction >= 1;
    options.limit = whole ? 0 : limits[i].of(card->driver().total_bytes());
    options.name = limits.size() == 1 ? fmt::format("GPU {}", device)
                                      : fmt::format("GPU {} (logical device {})", device, i);
    FLATOUT_TRY(auto pool, DevicePool::open(card, options));
    made->pools.push_back(std::move(pool));
  }
  in_use_ = true;
  devices_[device].store(made.get(), std::memory_order_release);
  return made.release();
}

Result<DevicePool*> Installed::pool_for(int device, Stream stream) {
  FLATOUT_TRY(Device* const there, open(device));
  if (there->pools.size() == 1) return there->pools[0].get();
  const std::lock_guard lock(mutex_);
  const auto it = there->bound.find(stream);
  return there->pools[it == there->bound.end() ? 0 : static_cast<size_t>(it->second)].get();
}

DevicePool* Installed::holder(int device, Address address) {
  const Device* const there = opened(device);
  if (there == nullptr) return nullptr;
  for (const auto& pool : there->pools)
    if (there->pools.size() == 1 || pool->holds(address)) return pool.get();
  return there->pools[0].get();  // which says that it has no such block
}

Status Installed::bind(int device, Stream stream, int index) {
  FLATOUT_TRY(Device* const there, open(device));
  if (index < 0 || static_cast<size_t>(index) >= there->pools.size())
    return Error{Code::kNotFound,
                 fmt::format("device {} has no logical device {}: it has {}", device, index,
                             there->pools.size()),
                 "limits=\"0=4GiB+4GiB\" makes two on device 0"};
  const std::lock_guard lock(mutex_);
  there->bound[stream] = index;
  return {};
}

int Installed::pools(int device) const {
  const Device* const there = opened(device);
  return there == nullptr ? 0 : static_cast<int>(there->pools.size());
}

DevicePool* Installed::pool(int device, int index) const {
  return index >= 0 && index < pools(device)
             ? opened(device)->pools[static_cast<size_t>(index)].get()
             : nullptr;
}

void Installed::trim() {
  for (int device = 0; device < kMostDevices; ++device)
    for (int i = 0; i < pools(device); ++i) pool(device, i)->trim();
}

void Installed::flush() {
  for (int device = 0; device < kMostDevices; ++device)
    for (int i = 0; i < pools(device); ++i) pool(device, i)->flush();
}

}  // namespace flatout::devmem

// The pools that stand in for a framework's allocator: for each device one or several, opened when
// it first asks for memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devmem/device_pool.h"
#include "devmem/limits.h"

namespace flatout::devmem {

enum class DeviceKind { kCuda, kHost, kSimulated };

/// The device, shared by all who have pools on it. `capacity`: of the host (0: the machine's) and
/// simulated (0: 16 GiB), where this is its first user. Errors: those of CudaDriver::open().
Result<std::shared_ptr<Card>> card_of(DeviceKind kind, int device, Bytes capacity);

/// What the environment says of recording and debugging: FLATOUT_DEVMEM_RECORD, _HISTORY, _SITES,
/// _DEBUG.
PoolOptions options_of_environment();

class Installed {
 public:
  static constexpr int kMostDevices = 64;

  /// The process's; it is never destroyed, since blocks are freed until the very end.
  static Installed& get();

  /// Before the first request. Errors: kBadInput: no such policy, or limits that cannot be read;
  /// kDenied: it is in use already.
  Status configure(std::string_view policy, std::string_view limits);
  /// Later it changes nothing, and says so.
  void set_fraction(int device, double fraction);

  /// Errors: those of opening the device; kGone in a process that was forked.
  Result<DevicePool*> pool_for(int device, Stream stream);
  /// The one that holds the block; nullptr if none does.
  DevicePool* holder(int device, Address address);
  Status bind(int device, Stream stream, int index);
  int pools(int device) const;
  DevicePool* pool(int device, int index) const;
  void trim();
  void flush();

 private:
  struct Device {
    std::vector<std::unique_ptr<DevicePool>> pools;
    std::map<Stream, int> bound;  // under mutex_
  };
  Installed();
  Result<Device*> open(int device);
  std::vector<Limit> limits_of(int device) const;
  const Device* opened(int device) const;  // nullptr in a process that was forked

  std::mutex mutex_;
  std::string policy_ = "arena";
  std::vector<DeviceLimits> limits_;
  std::map<int, double> fractions_;
  bool in_use_ = false;
  std::atomic<Device*> devices_[kMostDevices] = {};
};

}  // namespace flatout::devmem

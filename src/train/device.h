// A logical device: threads of its own, and memory within a limit that devmem's arena hands out.
// Several of them share a machine, as several replicas of a model do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "devmem/arena.h"
#include "devmem/host_driver.h"
#include "train/pool.h"

namespace flatout::train {

class Device {
 public:
  /// limit_bytes 0: all memory of the machine.
  Device(std::string name, uint64_t limit_bytes, int threads, bool spin = false);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Zeroed memory that lives as long as the device, aligned to 256 bytes.
  /// Errors: kFull, naming the device, its limit and what it holds.
  Result<void*> allocate(uint64_t bytes);
  uint64_t allocated() const { return arena_->stats().allocated; }
  Pool& pool() { return pool_; }

 private:
  std::string name_;
  devmem::HostDriver driver_;
  std::unique_ptr<devmem::Arena> arena_;
  std::vector<devmem::Address> blocks_;
  Pool pool_;
};

}  // namespace flatout::train

// What a policy asks of the device: plain allocation, and address ranges with physical memory
// mapped into them (CUDA driver API: cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess).
// Implementations: SimDriver; the one over libcuda comes by dlopen.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace flatout::devmem {

using Address = uint64_t;
using Bytes = uint64_t;
using Stream = uint64_t;  // 0 is the default stream
using Handle = uint64_t;  // physical memory; 0 is none

/// Physical memory comes in multiples of this (cuMemGetAllocationGranularity on every card so far).
inline constexpr Bytes kPageBytes = Bytes{2} << 20;

constexpr Bytes round_up(Bytes size, Bytes granule) {
  return (size + granule - 1) / granule * granule;
}

class Driver {
 public:
  virtual ~Driver() = default;

  virtual Bytes total_bytes() const = 0;

  /// cuMemAlloc. Errors: kFull.
  virtual Result<Address> allocate(Bytes size) = 0;
  /// cuMemFree of what allocate() gave; waits for the device.
  virtual void free(Address address) = 0;

  /// Addresses without memory, aligned to a page. Errors: kFull.
  virtual Result<Address> reserve(Bytes size) = 0;
  virtual void unreserve(Address address) = 0;
  /// Physical memory of a multiple of a page, which can be mapped only as a whole. Errors: kFull.
  virtual Result<Handle> create(Bytes size) = 0;
  virtual void release(Handle handle) = 0;  // not while mapped
  virtual void map(Address address, Handle handle) = 0;
  virtual void set_access(Address address, Bytes size) = 0;  // mapped throughout
  virtual void unmap(Address address) = 0;                   // where a handle was mapped

  /// Waits for what was queued on the stream so far.
  virtual void synchronize(Stream stream) = 0;
};

}  // namespace flatout::devmem

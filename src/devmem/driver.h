// What is asked of a device: plain and stream-ordered allocation, address ranges with physical
// memory mapped into them (CUDA driver API: cuMemAddressReserve, cuMemCreate, cuMemMap,
// cuMemSetAccess), streams and events. Implementations: SimDriver, HostDriver, CudaDriver; all pass
// testing/driver_suite.h. A driver is used by one thread at a time.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace flatout::devmem {

using Address = uint64_t;
using Bytes = uint64_t;
using Stream = uint64_t;  // 0 is the default stream
using Handle = uint64_t;  // physical memory; 0 is none
using Event = uint64_t;   // a point in a stream's work

/// Physical memory comes in multiples of this (cuMemGetAllocationGranularity on every card so far).
inline constexpr Bytes kPageBytes = Bytes{2} << 20;

constexpr Bytes round_up(Bytes size, Bytes granule) {
  return (size + granule - 1) / granule * granule;
}

class Driver {
 public:
  virtual ~Driver() = default;

  virtual Bytes total_bytes() const = 0;
  /// What nobody has taken, as the driver sees it now.
  virtual Bytes free_bytes() = 0;

  /// cuMemAlloc. Errors: kFull.
  virtual Result<Address> allocate(Bytes size) = 0;
  /// cuMemFree of what allocate() gave; waits for the device.
  virtual void free(Address address) = 0;

  /// cuMemAllocAsync: memory that work queued on the stream from now on may use; what the stream
  /// freed before may serve. Errors: kFull.
  virtual Result<Address> allocate_async(Bytes size, Stream stream) = 0;
  /// cuMemFreeAsync of what allocate_async() gave: it goes once the stream's work so far is done.
  virtual void free_async(Address address, Stream stream) = 0;

  /// Addresses without memory, aligned to a page. Errors: kFull.
  virtual Result<Address> reserve(Bytes size) = 0;
  virtual void unreserve(Address address) = 0;
  /// Physical memory of a multiple of a page, which can be mapped only as a whole. Errors: kFull.
  virtual Result<Handle> create(Bytes size) = 0;
  virtual void release(Handle handle) = 0;  // not while mapped
  /// A handle may be mapped at several places: the same memory by several addresses. What an
  /// operation wrote by one of them is seen by another once that operation is complete (CUDA
  /// programming guide, virtual aliasing).
  virtual void map(Address address, Handle handle) = 0;
  virtual void set_access(Address address, Bytes size) = 0;  // mapped throughout
  virtual void unmap(Address address) = 0;                   // where a handle was mapped

  /// Waits for what was queued on the stream so far. Work outlives its stream: where the program
  /// has destroyed it, all of the device is waited for.
  virtual void synchronize(Stream stream) = 0;
  /// The end of what was queued on the stream so far, which has come where the stream is destroyed.
  /// Each event goes to forget() once.
  virtual Event record(Stream stream) = 0;
  virtual bool is_done(Event event) = 0;
  virtual void wait(Event event) = 0;
  virtual void forget(Event event) = 0;
  /// Whether a graph is being captured from the stream: it must not be waited for, and what it
  /// is given must stay its own for as long as the graph lives.
  virtual bool is_capturing(Stream) { return false; }

  /// The first call that the device refused though it should not have, as after a kernel's illegal
  /// access: from then on nothing that the driver says can be relied on.
  virtual Status health() const { return {}; }
};

}  // namespace flatout::devmem

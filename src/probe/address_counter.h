// How often a thread comes to an address (perf_event_open(2)).
//
// By a hardware breakpoint, which any user may have, or by a uprobe. On some processors (Sapphire
// Rapids) a breakpoint makes each store that crosses a cache line ten times as slow as long as it
// is set: vectorised loops over memory of malloc's then take three times as long. There it is a
// uprobe, for which the kernel puts a trap into the process's copy of the page. It needs root, and
// costs 1 to 30 us whenever any thread of the process comes by, until it is paused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace flatout::probe {

class AddressCounter {
 public:
  enum class By : uint8_t { kBreakpoint, kUprobe };
  /// What slows nobody down here; tried out once, in a fraction of a millisecond.
  static By best();

  /// Counts up to `most` times. Errors: kDenied, kUnsupported (no breakpoint is left, or the
  /// machine has none), kGone.
  static Result<std::unique_ptr<AddressCounter>> open(int32_t tid, uint64_t address, uint32_t most,
                                                      By by = best());
  ~AddressCounter();
  AddressCounter(const AddressCounter&) = delete;
  AddressCounter& operator=(const AddressCounter&) = delete;

  uint64_t count() const;
  void pause();
  /// Goes on, for as many times as it was opened for.
  Status resume();

 private:
  AddressCounter(int32_t tid, uint32_t most) : tid_(tid), most_(most) {}
  Result<int> open_uprobe() const;
  void close_event();

  int32_t tid_;
  uint32_t most_;
  int fd_ = -1;
  uint64_t before_ = 0;  // counted by what was closed
  std::string file_;     // of a uprobe, and where in it
  uint64_t offset_ = 0;
};

}  // namespace flatout::probe

// What every process under one limit has taken of each device: a file in shared memory, all zeros
// when it is new. A request is charged by compare-exchange before the driver is asked, so the sum
// never passes the limit, and of two racers for the last bytes exactly one gets them. A process
// that died without giving back is found by the next request that would be refused.
//
// Order matters where a process may be killed between two writes: charge the device first, then
// the process; give back to the process first, then to the device. What is lost that way stays
// charged, so the limit holds.
#pragma once

#include <atomic>
#include <cstdint>

namespace flatout::devlimit {

inline constexpr int kMostDevices = 64;
inline constexpr int kMostProcesses = 1024;
inline constexpr uint64_t kUnlimited = UINT64_MAX;

class Ledger {
 public:
  /// The file at `path` (shared with others), or memory of this process where path is null, or
  /// cannot be opened or has no room on its disk. nullptr: there is not even memory.
  static Ledger* open(const char* path);

  /// The device's row, by what names the card (not 0); `limit` counts where the row is new. -1: the
  /// table is full.
  int device(uint64_t key, uint64_t limit);
  /// -1 where no process has met that card.
  int find(uint64_t key) const;

  /// False: it would pass the limit.
  bool charge(int device, uint64_t bytes);
  void give_back(int device, uint64_t bytes);
  /// Charges what is taken already, whatever the limit: what comes later is refused.
  void charge_anyway(int device, uint64_t bytes);
  /// Gives back what dead processes held; true if there was any.
  bool reclaim();

  uint64_t limit(int device) const { return devices_[device].limit.load(); }
  uint64_t used(int device) const { return devices_[device].used.load(); }
  uint64_t room(int device) const;
  /// Of this process.
  uint64_t own(int device) const;
  /// The most that own() has been since watch(). One thread at a time may watch.
  void watch(int device);
  uint64_t most_own(int device) const;
  /// What a context took when one was last measured; 0: never.
  std::atomic<uint64_t>& context_bytes(int device) { return devices_[device].context; }

  /// In the child after fork: it owns nothing of what its parent took.
  void forked();

 private:
  struct Device {
    std::atomic<uint64_t> key, limit, used, context;
  };
  struct Process {
    std::atomic<uint64_t> pid;      // 0: free; kReclaiming: being emptied
    std::atomic<uint64_t> started;  // clock ticks since boot, against a pid that is used again
    std::atomic<uint64_t> space;    // the pid namespace
    std::atomic<uint64_t> used[kMostDevices];
  };
  static constexpr uint64_t kReclaiming = UINT64_MAX;

  Process* mine();
  void add(Process& process, int device, uint64_t bytes);
  bool empty_if_dead(Process& process, uint64_t space);
  void take_all(Process& process, uint64_t pid);
  bool charge_once(int device, uint64_t bytes);

  Device devices_[kMostDevices];
  Process processes_[kMostProcesses];
};

}  // namespace flatout::devlimit

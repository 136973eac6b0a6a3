// A card that exists in numbers only, shared by all processes that name the same file in
// FAKE_CARD: what the stand-in drivers have handed out, and the most they ever had.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace fake {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kCapacity = uint64_t{16} << 30;
inline constexpr int kCards = 2;
inline constexpr uint64_t kContextBytes = 64 * kMiB, kModuleBytes = 8 * kMiB;

struct Process {
  std::atomic<int> pid;
  std::atomic<uint64_t> used[kCards];
};

struct Card {
  std::atomic<uint64_t> used[kCards], peak[kCards];
  std::atomic<uint64_t> refused;  // requests that a stress job was refused
  std::atomic<int> ready;         // stress jobs that have their context
  Process processes[64];

  Process& process(int pid) {
    for (Process& p : processes) {
      int nobody = 0;
      if (p.pid.compare_exchange_strong(nobody, pid) || nobody == pid) return p;
    }
    abort();
  }
  bool take(int card, uint64_t bytes) {
    uint64_t now = used[card].load();
    do {
      if (bytes > kCapacity - now) return false;
    } while (!used[card].compare_exchange_weak(now, now + bytes));
    for (uint64_t most = peak[card].load();
         most < now + bytes && !peak[card].compare_exchange_weak(most, now + bytes);) {
    }
    process(::getpid()).used[card] += bytes;
    return true;
  }
  void give(int card, uint64_t bytes) {
    process(::getpid()).used[card] -= bytes;
    used[card] -= bytes;
  }
  /// What the kernel's part of the driver does when a process is gone.
  void died(int pid) {
    for (int card = 0; card < kCards; ++card) used[card] -= process(pid).used[card].exchange(0);
  }
};

inline Card& card() {
  static Card* const shared = [] {
    const char* const path = ::getenv("FAKE_CARD");
    const int fd = path != nullptr ? ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ::ftruncate(fd, sizeof(Card)) != 0) abort();
    void* const memory = ::mmap(nullptr, sizeof(Card), PROT_READ | PROT_WRITE,
                                fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<Card*>(memory);
  }();
  return *shared;
}

}  // namespace fake

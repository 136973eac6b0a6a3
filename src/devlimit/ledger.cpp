#include "devlimit/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "devlimit/say.h"

namespace flatout::devlimit {
namespace {

std::atomic<int> g_mine{-1};                 // this process's row; -1: none yet
std::atomic<int> g_finder{0};                // the process whose thread looks for a row
std::atomic<uint64_t> g_most[kMostDevices];  // of this process, since watch()

void raise(std::atomic<uint64_t>& most, uint64_t now) {
  uint64_t before = most.load();
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
}

struct Birth {
  bool dead = false;
  uint64_t started = 0;
};

// Field 22 of /proc/PID/stat, and whether the process is a zombie: its memory is gone by then,
// unless only its first thread has ended.
Birth birth_of(uint64_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {errno == ENOENT && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH};
  char text[1024];
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (n <= 0) return {errno == ESRCH};
  text[n] = 0;
  const char* at = strrchr(text, ')');  // the name before it may hold anything
  if (at == nullptr || at[1] == 0) return {};
  Birth out;
  const char state = at[2];
  uint64_t threads = 0;
  int field = 2;
  for (at += 1; *at != 0 && field < 22; ++at) {
    if (*at != ' ') continue;
    ++field;
    if (field == 20) threads = strtoull(at + 1, nullptr, 10);
    if (field == 22) out.started = strtoull(at + 1, nullptr, 10);
  }
  out.dead = state == 'X' || (state == 'Z' && threads <= 1);
  return out;
}

uint64_t pid_space() {
  struct stat s;
  return ::stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 1;
}

// A hole in a file on a full tmpfs, as /dev/shm of a container may be, would be a SIGBUS in the
// job. What has its size and its blocks already does not change, so all may do it.
bool reserve(int fd, size_t bytes) {
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return true;
  return (errno == EOPNOTSUPP || errno == ENOSYS) &&
         ::ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

}  // namespace

Ledger* Ledger::open(const char* path) {
  int fd = -1;
  if (path != nullptr) {
    fd = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || !reserve(fd, sizeof(Ledger))) {
      say("cannot use %s (%s): the limit holds for each process by itself", path, strerror(errno));
      if (fd >= 0) ::close(fd);
      fd = -1;
    }
  }
  void* const memory = ::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE,
                              fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
  if (fd >= 0) ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<Ledger*>(memory);
}

int Ledger::device(uint64_t key, uint64_t limit) {
  for (int i = 0; i < kMostDevices; ++i) {
    uint64_t there = 0;
    if (devices_[i].key.compare_exchange_strong(there, key)) there = key;
    if (there != key) continue;
    // 0 stands for "not set yet": who comes first sets it. A limit of 0 bytes is 1.
    uint64_t unset = 0;
    devices_[i].limit.compare_exchange_strong(unset, limit > 0 ? limit : 1);
    return i;
  }
  return -1;
}

int Ledger::find(uint64_t key) const {
  for (int i = 0; i < kMostDevices; ++i)
    if (devices_[i].key.load() == key && devices_[i].limit.load() != 0) return i;
  return -1;
}

Ledger::Process* Ledger::mine() {
  int index = g_mine.load(std::memory_order_acquire);
  if (index >= 0) return &processes_[index];
  // One thread finds a row; the others wait for it. This happens once in a process.
  const int me = static_cast<int>(::getpid());
  int nobody = g_finder.load();
  while (true) {
    if (nobody != me && g_finder.compare_exchange_strong(nobody, me)) break;
    if ((index = g_mine.load(std::memory_order_acquire)) >= 0) return &processes_[index];
    if (index == -2) return nullptr;
    ::usleep(50);
    nobody = g_finder.load();
  }
  const uint64_t pid = static_cast<uint64_t>(me), space = pid_space();
  const uint64_t started = birth_of(pid).started;
  // What this process held before it executed another program is gone.
  for (Process& p : processes_)
    if (p.pid.load() == pid && p.started.load() == started && p.space.load() == space)
      take_all(p, pid);
  for (int round = 0; round < 2; ++round, reclaim()) {
    for (int i = 0; i < kMostProcesses; ++i) {
      uint64_t unused = 0;
      if (!processes_[i].pid.compare_exchange_strong(unused, pid)) continue;
      processes_[i].space.store(space);
      processes_[i].started.store(started);
      g_mine.store(i, std::memory_order_release);
      return &processes_[i];
    }
  }
  say("more than %d processes under one limit: this one gets no device memory", kMostProcesses);
  g_mine.store(-2, std::memory_order_release);
  return nullptr;
}

bool Ledger::charge_once(int index, uint64_t bytes) {
  Device& device = devices_[index];
  const uint64_t limit = device.limit.load();
  uint64_t used = device.used.load();
  do {
    if (used > limit || bytes > limit - used) return false;
  } while (!device.used.compare_exchange_weak(used, used + bytes));
  return true;
}

bool Ledger::charge(int device, uint64_t bytes) {
  if (bytes == 0) return true;
  Process* const process = mine();
  if (process == nullptr) return false;
  if (!charge_once(device, bytes) && !(reclaim() && charge_once(device, bytes))) return false;
  add(*process, device, bytes);
  return true;
}

void Ledger::charge_anyway(int device, uint64_t bytes) {
  Process* const process = mine();
  if (process == nullptr) return;
  devices_[device].used.fetch_add(bytes);
  add(*process, device, bytes);
}

void Ledger::add(Process& process, int device, uint64_t bytes) {
  raise(g_most[device], process.used[device].fetch_add(bytes) + bytes);
}

void Ledger::give_back(int device, uint64_t bytes) {
  Process* const process = mine();
  if (process == nullptr || bytes == 0) return;
  process->used[device].fetch_sub(bytes);
  devices_[device].used.fetch_sub(bytes);
}

uint64_t Ledger::room(int device) const {
  const uint64_t limit_now = limit(device), used_now = used(device);
  return used_now < limit_now ? limit_now - used_now : 0;
}

uint64_t Ledger::own(int device) const {
  const int index = g_mine.load(std::memory_order_acquire);
  return index < 0 ? 0 : processes_[index].used[device].load();
}

// What is added between the two lines is in own() or comes after the 0.
void Ledger::watch(int device) {
  g_most[device].store(0);
  raise(g_most[device], own(device));
}

uint64_t Ledger::most_own(int device) const { return g_most[device].load(); }

// Of that process alone: another may have emptied the row meanwhile, and a third have it now.
void Ledger::take_all(Process& process, uint64_t pid) {
  if (!process.pid.compare_exchange_strong(pid, kReclaiming)) return;
  for (int d = 0; d < kMostDevices; ++d) {
    const uint64_t bytes = process.used[d].exchange(0);
    if (bytes > 0) devices_[d].used.fetch_sub(bytes);
  }
  process.started.store(0);
  process.pid.store(0);
}

// A pid of another namespace says nothing here.
bool Ledger::empty_if_dead(Process& process, uint64_t space) {
  const uint64_t pid = process.pid.load(), started = process.started.load();
  if (pid == 0 || pid == kReclaiming || started == 0 || process.space.load() != space) return false;
  const Birth birth = birth_of(pid);
  if (!birth.dead && (birth.started == 0 || birth.started == started)) return false;
  take_all(process, pid);
  return true;
}

bool Ledger::reclaim() {
  const uint64_t space = pid_space();
  bool any = false;
  for (Process& process : processes_) any |= empty_if_dead(process, space);
  return any;
}

void Ledger::forked() {
  g_finder.store(0);
  g_mine.store(-1, std::memory_order_release);
}

}  // namespace flatout::devlimit

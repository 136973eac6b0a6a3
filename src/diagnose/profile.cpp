#include "diagnose/profile.h"

#include <sys/syscall.h>

#include <map>

namespace flatout::diagnose {
namespace {

using model::ThreadState;

enum class CallKind : uint8_t {
  kOther,
  kMetadata,
  kRead,
  kSeek,
  kWrite,
  kSleep,
  kNetwork,
  kPoll,
  kProcess,
  kMemory
};

CallKind kind_of(int call) {
  switch (call) {
#ifdef SYS_open
    case SYS_open:
    case SYS_stat:
    case SYS_lstat:
    case SYS_access:
    case SYS_readlink:
    case SYS_getdents:
    case SYS_unlink:
    case SYS_rename:
    case SYS_mkdir:
#endif
    case SYS_openat:
    case SYS_newfstatat:
    case SYS_statx:
    case SYS_faccessat:
    case SYS_getdents64:
    case SYS_readlinkat:
    case SYS_close:
    case SYS_fstat:
    case SYS_getcwd:
      return CallKind::kMetadata;
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_sendfile:
    case SYS_readahead:
      return CallKind::kRead;
    case SYS_lseek:
      return CallKind::kSeek;
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_pwritev:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_sync_file_range:
    case SYS_msync:
    case SYS_ftruncate:
    case SYS_fallocate:
      return CallKind::kWrite;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return CallKind::kSleep;
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_connect:
    case SYS_accept:
      return CallKind::kNetwork;
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
    case SYS_epoll_wait:
#endif
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_epoll_pwait:
      return CallKind::kPoll;
#ifdef SYS_fork
    case SYS_fork:
    case SYS_vfork:
#endif
    case SYS_clone:
    case SYS_clone3:
    case SYS_execve:
    case SYS_wait4:
    case SYS_waitid:
      return CallKind::kProcess;
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mremap:
    case SYS_madvise:
    case SYS_brk:
    case SYS_mprotect:
      return CallKind::kMemory;
    default:
      return CallKind::kOther;
  }
}

uint64_t key_of(const Cell& c) {
  static_assert(kInCompile < 1 << 24, "traits have 24 bits here, and frames as many as no job has");
  return static_cast<uint64_t>(c.user) << 40 | static_cast<uint64_t>(c.traits) << 16 |
         static_cast<uint64_t>(c.aside) << 15 | static_cast<uint64_t>(c.role) << 12 |
         static_cast<uint64_t>(c.stage) << 10 | static_cast<uint64_t>(c.act) << 5 |
         static_cast<uint64_t>(c.part) << 1 | static_cast<uint64_t>(c.slow_step);
}

}  // namespace

bool on_cpu(Act act) {
  return act == Act::kPython || act == Act::kNative || act == Act::kKernel || act == Act::kMemory ||
         act == Act::kGc;
}

bool works(Act act) {
  return act != Act::kIdle && act != Act::kLock && act != Act::kPoll && act != Act::kSleep &&
         act != Act::kUnknown;
}

bool waits_for_nobody(Act act) {
  return on_cpu(act) || act == Act::kRunQueue || act == Act::kGil || act == Act::kRead ||
         act == Act::kMetadata || act == Act::kSeek || act == Act::kSleep || act == Act::kNetwork ||
         act == Act::kChild || act == Act::kReclaim;
}

std::string_view words(Act act) {
  switch (act) {
    case Act::kPython:
      return "in Python";
    case Act::kNative:
      return "in native code";
    case Act::kKernel:
      return "in the kernel";
    case Act::kMemory:
      return "mapping memory";
    case Act::kRunQueue:
      return "waiting for a core";
    case Act::kGil:
      return "waiting for the GIL";
    case Act::kLock:
      return "waiting for a lock";
    case Act::kRead:
      return "waiting for storage";
    case Act::kMetadata:
      return "looking up files";
    case Act::kSeek:
      return "seeking";
    case Act::kWrite:
      return "writing";
    case Act::kSleep:
      return "sleeping";
    case Act::kPoll:
      return "waiting for a pipe or process";
    case Act::kNetwork:
      return "waiting for a socket";
    case Act::kChild:
      return "waiting for a child";
    case Act::kReclaim:
      return "waiting for memory";
    case Act::kGc:
      return "collecting garbage";
    case Act::kIdle:
      return "idle";
    case Act::kUnknown:
    case Act::kCount:
      break;
  }
  return "doing something unknown";
}

Act act_of(const model::StackReading& reading, Traits traits) {
  const CallKind call = kind_of(reading.syscall);
  const ThreadState state = reading.state;
  if ((reading.flags & model::kIdleWorker) != 0) return Act::kIdle;
  const bool running = state == ThreadState::kOnCpuPython || state == ThreadState::kOnCpuNative ||
                       state == ThreadState::kKernel;
  if ((reading.flags & model::kGcRunning) != 0 && running) return Act::kGc;
  if (state == ThreadState::kGilWait) return Act::kGil;
  if (state == ThreadState::kRunQueue) return Act::kRunQueue;
  if (state == ThreadState::kReclaim) return Act::kReclaim;
  if ((traits & kInSubprocess) != 0 && (traits & kInSpawn) == 0) return Act::kChild;
  if (state == ThreadState::kChild || call == CallKind::kProcess) return Act::kChild;
  if ((traits & kInArchive) != 0 && state != ThreadState::kPoll) {
    return state == ThreadState::kDisk ? Act::kRead : Act::kSeek;
  }
  if ((traits & kInMetadata) != 0 && (running || state == ThreadState::kDisk)) {
    return Act::kMetadata;
  }
  switch (call) {
    case CallKind::kMetadata:
      return Act::kMetadata;
    case CallKind::kWrite:
      return Act::kWrite;
    case CallKind::kSeek:
      return Act::kSeek;
    case CallKind::kSleep:
      return Act::kSleep;
    case CallKind::kNetwork:
      return Act::kNetwork;
    case CallKind::kMemory:
      return Act::kMemory;
    case CallKind::kRead:
      // On a pipe or terminal the state says poll.
      if (state == ThreadState::kDisk || state == ThreadState::kKernel) return Act::kRead;
      break;
    default:
      break;
  }
  switch (state) {
    case ThreadState::kOnCpuPython:
      return Act::kPython;
    case ThreadState::kOnCpuNative:
      return Act::kNative;
    case ThreadState::kKernel:
      return Act::kKernel;
    case ThreadState::kDisk:
      return Act::kRead;
    case ThreadState::kSleep:
      return Act::kSleep;
    case ThreadState::kPoll:
      return Act::kPoll;
    case ThreadState::kLock:
      return Act::kLock;
    default:
      return Act::kUnknown;
  }
}

void Profile::add(const Cell& one) {
  const auto [it, fresh] = index_.try_emplace(key_of(one), static_cast<uint32_t>(cells_.size()));
  if (fresh) {
    cells_.push_back(one);
    return;
  }
  cells_[it->second].seconds += one.seconds;
  cells_[it->second].readings += one.readings;
}

double Profile::seconds(const Filter& filter) const {
  double sum = 0;
  for (const Cell& c : cells_) {
    if (filter(c)) sum += c.seconds;
  }
  return sum;
}

int64_t Profile::readings(const Filter& filter) const {
  int64_t sum = 0;
  for (const Cell& c : cells_) {
    if (filter(c)) sum += c.readings;
  }
  return sum;
}

std::optional<Hot> Profile::hottest(const Filter& filter, const model::Run& run,
                                    const Profile* before, double times) const {
  struct Function {
    double seconds = 0;
    std::map<model::FrameId, double> lines;
  };
  std::map<uint64_t, Function> functions;
  const auto add = [&](const std::vector<Cell>& cells, double weight) {
    for (const Cell& c : cells) {
      if (c.user == 0 || c.user >= run.frames.size() || !filter(c)) continue;
      const model::Frame& f = run.frames[c.user];
      Function& function = functions[static_cast<uint64_t>(f.file) << 32 | f.function];
      function.seconds += weight * c.seconds;
      function.lines[c.user] += weight * c.seconds;
    }
  };
  add(cells_, 1);
  if (before != nullptr) add(before->cells_, -times);
  Hot best;
  for (const auto& [key, function] : functions) {
    if (function.seconds <= best.seconds) continue;
    best = {0, function.seconds};
    double most = 0;
    for (const auto& [frame, seconds] : function.lines) {
      if (seconds > most) {
        most = seconds;
        best.frame = frame;
      }
    }
  }
  if (best.frame == 0) return std::nullopt;
  return best;
}

}  // namespace flatout::diagnose

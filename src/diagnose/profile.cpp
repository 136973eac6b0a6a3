#include "diagnose/profile.h"

#include <map>

#include "model/system_call.h"

namespace flatout::diagnose {
namespace {

using model::ThreadState;

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

bool in_kernel(Act act) { return act == Act::kKernel || act == Act::kMemory; }

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
  const model::CallKind call = model::call_kind(reading.syscall);
  const ThreadState state = reading.state;
  if ((reading.flags & model::kIdleWorker) != 0) return Act::kIdle;
  const bool running = state == ThreadState::kOnCpuPython || state == ThreadState::kOnCpuNative ||
                       state == ThreadState::kKernel;
  if ((reading.flags & model::kGcRunning) != 0 && running) return Act::kGc;
  if (state == ThreadState::kGilWait) return Act::kGil;
  if (state == ThreadState::kRunQueue) return Act::kRunQueue;
  if (state == ThreadState::kReclaim) return Act::kReclaim;
  if ((traits & kInSubprocess) != 0 && (traits & kInSpawn) == 0) return Act::kChild;
  if (state == ThreadState::kChild || call == model::CallKind::kProcess) return Act::kChild;
  if ((traits & kInArchive) != 0 && state != ThreadState::kPoll) {
    return state == ThreadState::kDisk ? Act::kRead : Act::kSeek;
  }
  if ((traits & kInMetadata) != 0 && (running || state == ThreadState::kDisk)) {
    return Act::kMetadata;
  }
  switch (call) {
    case model::CallKind::kMetadata:
      return Act::kMetadata;
    case model::CallKind::kWrite:
      return Act::kWrite;
    case model::CallKind::kSeek:
      return Act::kSeek;
    case model::CallKind::kSleep:
      return Act::kSleep;
    case model::CallKind::kNetwork:
      return Act::kNetwork;
    case model::CallKind::kMemory:
      return Act::kMemory;
    case model::CallKind::kRead:
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

uint64_t function_key(const model::Run& run, model::FrameId frame) {
  const model::Frame& f = run.frames[frame < run.frames.size() ? frame : 0];
  return uint64_t{f.file} << 32 | f.function;
}

bool is_unread(const Cell& cell) { return cell.user == 0 && (cell.traits & kHasPython) == 0; }

bool at_lock_of_jobs(const Cell& cell) {
  return (cell.traits & kInMutex) != 0 && (cell.traits & kInMalloc) == 0;
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
      Function& function = functions[function_key(run, c.user)];
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

#include "screen/actions.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <vector>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr int kIoprioWhoProcess = 1;

uint64_t start_of(const fs::Root& root, const Command::Target& target) {
  const std::string path =
      target.tid == target.pid
          ? probe::proc_path(target.pid, "stat")
          : probe::proc_path(target.pid, fmt::format("task/{}/stat", target.tid));
  const auto text = root.read(path, 4096);
  const auto stat = text.ok() ? probe::parse_pid_stat(*text) : std::nullopt;
  return stat ? stat->start_ticks : 0;
}

// 0, or errno. The descriptor holds on to the very process that was checked.
int send_signal(const fs::Root& root, const Command::Target& target, int number) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, target.pid, 0));
  if (fd < 0 && errno != ENOSYS) return errno;
  if (start_of(root, target) != target.start_ticks) {
    if (fd >= 0) ::close(fd);
    return ESRCH;
  }
  const int64_t done = fd >= 0 ? ::syscall(SYS_pidfd_send_signal, fd, number, nullptr, 0)
                               : ::kill(target.pid, number);
  const int error = done == 0 ? 0 : errno;
  if (fd >= 0) ::close(fd);
  return error;
}

int set_one(const Command& command, int32_t tid) {
  int64_t done = -1;
  switch (command.kind) {
    case Command::Kind::kNice:
      done = ::setpriority(PRIO_PROCESS, static_cast<id_t>(tid), command.value);
      break;
    case Command::Kind::kIoPriority:
      done = ::syscall(SYS_ioprio_set, kIoprioWhoProcess, tid, command.value);
      break;
    case Command::Kind::kCores: {
      cpu_set_t* set = CPU_ALLOC(8192);
      const size_t size = CPU_ALLOC_SIZE(8192);
      if (set == nullptr) return ENOMEM;
      CPU_ZERO_S(size, set);
      for (const int32_t core : command.cores) CPU_SET_S(static_cast<size_t>(core), size, set);
      done = ::sched_setaffinity(tid, size, set);
      const int error = errno;
      CPU_FREE(set);
      errno = error;
      break;
    }
    default:
      return EINVAL;
  }
  return done == 0 ? 0 : errno;
}

// One file says the weight of a process's session, and the kernel lets nobody but root change it
// twice within a tenth of a second: each session once. `done`: those that were set already.
int set_autogroup(const fs::Root& root, const Command::Target& target, int nice,
                  std::set<std::string>& done) {
  if (start_of(root, target) != target.start_ticks) return ESRCH;
  const std::string path = probe::proc_path(target.pid, "autogroup");
  const auto group = root.read(path, 256);
  std::string_view text = group.ok() ? std::string_view(*group) : "";
  const std::string name(next_word(text));  // "/autogroup-17 nice 5"
  if (name.empty()) return ENOTSUP;
  if (!done.insert(name).second) return 0;
  const int fd = ::open(root.full(path).c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const std::string value = std::to_string(nice);
  const int error = ::write(fd, value.data(), value.size()) < 0 ? errno : 0;
  ::close(fd);
  return error;
}

std::string reason(int error) {
  if (error == ESRCH) return "has ended";
  if (error == ENOTSUP) return "is in no autogroup (kernel.sched_autogroup_enabled)";
  return std::strerror(error);
}

int set_all(const fs::Root& root, const Command& command, const Command::Target& target) {
  if (start_of(root, target) != target.start_ticks) return ESRCH;
  if (target.tid != target.pid) return set_one(command, target.tid);
  const auto names = root.list(probe::proc_path(target.pid, "task"));
  if (!names.ok()) return ESRCH;
  int first = 0;
  for (const std::string& name : *names) {
    const auto tid = parse_number<int32_t>(name);
    const int error = tid ? set_one(command, *tid) : 0;
    if (error != 0 && error != ESRCH && first == 0) first = error;  // threads come and go
  }
  return first;
}

}  // namespace

std::string act(const fs::Root& root, const Command& command) {
  size_t done = 0;
  std::string trouble;
  std::set<std::string> autogroups;
  const auto carry_out = [&](const Command::Target& target) {
    switch (command.kind) {
      case Command::Kind::kSignal:
        return send_signal(root, target, command.value);
      case Command::Kind::kAutogroup:
        return set_autogroup(root, target, command.value, autogroups);
      default:
        return set_all(root, command, target);
    }
  };
  for (const Command::Target& target : command.targets) {
    const int error = carry_out(target);
    if (error == 0) {
      ++done;
    } else if (trouble.empty()) {
      trouble = fmt::format("{} {}: {}", target.tid, target.name, reason(error));
    }
  }
  const std::string whom = done == 1 ? "1 process" : fmt::format("{} processes", done);
  if (trouble.empty()) return "done to " + whom;
  return done == 0 ? trouble : fmt::format("done to {}; {}", whom, trouble);
}

}  // namespace flatout::screen

#include "recorder/exit_watch.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::recorder {
namespace {

constexpr size_t kMaxWatched = 400;  // descriptors; beyond, the job tree sees ends without status

// Linux 6.15: exit information of a process that was reaped already (include/uapi/linux/pidfd.h,
// which the headers of older distributions lack).
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroupid;
  uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  int32_t exit_code;
};
constexpr uint64_t kPidfdInfoExit = 1u << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

int status_from_pidfd(int fd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(fd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) return -1;
  return info.exit_code;
}

// The last field of /proc/PID/stat while its parent has not reaped it.
int status_from_zombie(int32_t pid) {
  const auto text = fs::Root("/").read("proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text.ok()) return -1;
  std::string_view rest = *text;
  const size_t name_end = rest.rfind(')');
  if (name_end == std::string_view::npos) return -1;
  rest.remove_prefix(name_end + 1);
  if (next_word(rest) != "Z") return -1;
  std::string_view last;
  for (int field = 4; field <= 52; ++field) last = next_word(rest);
  return parse_number<int>(last).value_or(-1);
}

}  // namespace

ExitWatch::~ExitWatch() {
  for (const auto& [pid, fd] : watched_) {
    loop_.remove(fd);
    ::close(fd);
  }
}

bool ExitWatch::watch(int32_t pid) {
  if (watched_.contains(pid)) return true;
  if (watched_.size() >= kMaxWatched) return false;
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));  // close-on-exec by itself
  if (fd < 0) return false;
  if (!loop_.add(fd, EPOLLIN, [this, pid](uint32_t) { on_end(pid); }).ok()) {
    ::close(fd);
    return false;
  }
  watched_[pid] = fd;
  return true;
}

void ExitWatch::on_end(int32_t pid) {
  // The zombie first: the pidfd has the status once the process is reaped.
  int status = status_from_zombie(pid);
  if (status == -1) status = status_from_pidfd(watched_.at(pid));
  forget(pid);
  ended_(pid, status);
}

void ExitWatch::forget(int32_t pid) {
  const auto it = watched_.find(pid);
  if (it == watched_.end()) return;
  loop_.remove(it->second);
  ::close(it->second);
  watched_.erase(it);
}

}  // namespace flatout::recorder

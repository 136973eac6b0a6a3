#include "base/output.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::fs {
namespace {

constexpr int kMostLinks = 40;  // one after another, as the kernel has it

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

Status write_all(int fd, std::string_view data, std::string_view name) {
  while (!data.empty()) {
    const ssize_t put = ::write(fd, data.data(), data.size());
    if (put >= 0) {
      data.remove_prefix(static_cast<size_t>(put));
    } else if (errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return error_from_errno(errno, "cannot write " + std::string(name));
    }
  }
  return {};
}

bool is_special(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

std::string follow_links(std::string path) {
  for (int links = 0; links < kMostLinks; ++links) {
    char target[PATH_MAX];
    const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
    if (size <= 0 || size == sizeof target) return path;
    const std::string folder = folder_of(path);
    struct statfs system {};
    if (::statfs(folder.c_str(), &system) != 0 || system.f_type == PROC_SUPER_MAGIC) return path;
    const std::string next(target, static_cast<size_t>(size));
    path = next[0] == '/' ? next : folder == "." ? next : folder + next;
  }
  return path;
}

Status write_output(const std::string& name, std::string_view data) {
  const std::string path = follow_links(name);
  if (!is_special(path)) return write_atomically(path, data, true);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd < 0) return error_from_errno(errno, "cannot write " + escape_terminal(path));
  Status written = write_all(fd, data, escape_terminal(path));
  if (::close(fd) != 0 && written.ok())
    written = error_from_errno(errno, "cannot write " + escape_terminal(path));
  return written;
}

}  // namespace flatout::fs

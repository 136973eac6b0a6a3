#include "base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/output.h"
#include "base/text.h"

namespace flatout::fs {

Error error_from_errno(int err, std::string_view what) {
  Code code = Code::kIo;
  if (err == ENOENT || err == ENOTDIR) code = Code::kNotFound;
  if (err == EACCES || err == EPERM) code = Code::kDenied;
  if (err == ESRCH) code = Code::kGone;
  if (err == ENOSPC || err == EDQUOT) code = Code::kFull;
  return Error{code, std::string(what) + ": " + std::strerror(err), ""};
}

Root::Root(std::string path) : path_(std::move(path)) {
  if (path_.empty() || path_.back() != '/') path_ += '/';
}

std::string Root::full(std::string_view path) const {
  while (!path.empty() && path.front() == '/') path.remove_prefix(1);
  return path_ + std::string(path);
}

Status Root::read_into(std::string_view path, std::string& out, size_t limit) const {
  const std::string name = full(path);
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return error_from_errno(errno, "cannot open " + name);
  out.clear();
  // Files in /proc report size 0, so read until the end in growing pieces.
  size_t used = 0;
  for (;;) {
    if (used >= limit) break;
    const size_t want = std::min(limit - used, std::max<size_t>(4096, used));
    if (out.size() < used + want) out.resize(used + want);
    const ssize_t got = ::read(fd, out.data() + used, want);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int err = errno;
      ::close(fd);
      out.clear();
      return error_from_errno(err, "cannot read " + name);
    }
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  ::close(fd);
  out.resize(used);
  return {};
}

Result<std::string> Root::read(std::string_view path, size_t limit) const {
  std::string out;
  FLATOUT_TRY_STATUS(read_into(path, out, limit));
  return out;
}

Result<std::vector<std::string>> Root::list(std::string_view path) const {
  const std::string name = full(path);
  DIR* dir = ::opendir(name.c_str());
  if (dir == nullptr) return error_from_errno(errno, "cannot list " + name);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view leaf = entry->d_name;
    if (leaf != "." && leaf != "..") names.emplace_back(leaf);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> Root::read_link(std::string_view path) const {
  const std::string name = full(path);
  char target[PATH_MAX];
  const ssize_t size = ::readlink(name.c_str(), target, sizeof target);
  if (size < 0) return error_from_errno(errno, "cannot read link " + name);
  return std::string(target, static_cast<size_t>(size));
}

bool Root::exists(std::string_view path) const { return ::access(full(path).c_str(), F_OK) == 0; }

Status write_atomically(const std::string& path, std::string_view data, bool shared) {
  // The error names what the caller named.
  const std::string what = "cannot write " + escape_terminal(path);
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  const int fd =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, shared ? 0666 : 0600);
  if (fd < 0) return error_from_errno(errno, what);
  struct stat old;
  if (shared && ::stat(path.c_str(), &old) == 0) ::fchmod(fd, old.st_mode & 0777);
  Status written = write_all(fd, data, escape_terminal(path));
  if (::close(fd) != 0 && written.ok()) written = error_from_errno(errno, what);
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    written = error_from_errno(errno, what);
  if (!written.ok()) ::unlink(temporary.c_str());
  return written;
}

}  // namespace flatout::fs

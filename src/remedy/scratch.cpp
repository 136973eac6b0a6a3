#include "remedy/scratch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/fs.h"

namespace flatout::remedy {
namespace {

constexpr std::string_view kPrefix = "flatout-fix-";
constexpr size_t kRandom = 6;  // characters that mkdtemp puts behind it
constexpr int kTries = 10;

// The folder, locked; -1 where it is no folder of this user's, is in use, or has just gone.
int lock_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat held = {}, there = {};
  if (::fstat(fd, &held) == 0 && held.st_uid == ::geteuid() &&
      ::flock(fd, LOCK_EX | LOCK_NB) == 0 &&
      // Somebody else may have removed it before the lock was ours.
      ::lstat(path.c_str(), &there) == 0 && there.st_ino == held.st_ino &&
      there.st_dev == held.st_dev) {
    return fd;
  }
  ::close(fd);
  return -1;
}

bool is_scratch_name(std::string_view name) {
  return name.size() == kPrefix.size() + kRandom && name.starts_with(kPrefix);
}

}  // namespace

Result<std::unique_ptr<Scratch>> Scratch::make(const std::vector<std::string>& parents) {
  int failed = ENOENT;
  for (const std::string& parent : parents) {
    for (int i = 0; i < kTries; ++i) {
      std::string path = parent + "/" + std::string(kPrefix) + std::string(kRandom, 'X');
      if (::mkdtemp(path.data()) == nullptr) {
        failed = errno;
        break;
      }
      // Between these two calls another flatout may take it for a stale one.
      const int lock = lock_folder(path);
      if (lock >= 0) return std::unique_ptr<Scratch>(new Scratch(std::move(path), lock));
      ::rmdir(path.c_str());
      failed = EAGAIN;  // a file system without locks
    }
  }
  std::string where;
  for (const std::string& parent : parents) where += (where.empty() ? "" : " or ") + parent;
  return fs::error_from_errno(failed, "cannot make a scratch folder in " + where);
}

Scratch::~Scratch() {
  remove_all(path_);
  ::close(lock_);
}

int remove_stale_scratch(const std::string& parent) {
  int removed = 0;
  std::error_code ignored;
  std::vector<std::string> found;
  for (auto it = std::filesystem::directory_iterator(parent, ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    if (is_scratch_name(it->path().filename().native())) found.push_back(it->path().native());
  }
  for (const std::string& path : found) {
    const int lock = lock_folder(path);
    if (lock < 0) continue;
    remove_all(path);
    ::close(lock);
    ++removed;
  }
  return removed;
}

void remove_all(const std::string& path) {
  std::error_code ignored;
  for (auto it = std::filesystem::recursive_directory_iterator(path, ignored);
       it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) {
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) ::chmod(it->path().c_str(), 0700);
  }
  std::filesystem::remove_all(path, ignored);
}

}  // namespace flatout::remedy

#include "probe/thread_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace flatout::probe {
namespace {

constexpr const char* kNames[] = {"schedstat", "stat", "syscall", "wchan"};

Error file_error(int err, const char* name) {
  if (err == ESRCH) return Error{Code::kGone, "the thread has ended", ""};
  return fs::error_from_errno(err, std::string("cannot read a thread's ") + name);
}

}  // namespace

FileBudget FileBudget::from_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {0};
  return {static_cast<int>(std::min<rlim_t>(limit.rlim_cur / 4, 1024))};
}

ThreadFiles& ThreadFiles::operator=(ThreadFiles&& other) noexcept {
  if (this == &other) return *this;
  close_all();
  fds_ = std::exchange(other.fds_, {-1, -1, -1, -1});
  budget_ = std::exchange(other.budget_, nullptr);
  return *this;
}

void ThreadFiles::close_all() {
  for (int& fd : fds_) {
    if (fd < 0) continue;
    close(fd);
    fd = -1;
    if (budget_ != nullptr) budget_->left++;
  }
}

Result<std::string_view> ThreadFiles::read(const fs::Root& root, int32_t pid, int32_t tid,
                                           File file, std::array<char, 1024>& buffer,
                                           FileBudget& budget) {
  const char* name = kNames[file];
  int fd = fds_[file];
  if (fd < 0) {
    const std::string path =
        "proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/" + name;
    fd = open(root.full(path).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(errno, name);
  }
  ssize_t n;
  do {
    n = pread(fd, buffer.data(), buffer.size(), 0);
  } while (n < 0 && errno == EINTR);
  const int err = errno;
  if (fds_[file] < 0) {
    // wchan is read too seldom to keep it.
    if (n >= 0 && budget.left > 0 && file != kWchan) {
      budget.left--;
      budget_ = &budget;
      fds_[file] = fd;
    } else {
      close(fd);
    }
  }
  if (n < 0) return file_error(err, name);
  return std::string_view(buffer.data(), static_cast<size_t>(n));
}

}  // namespace flatout::probe

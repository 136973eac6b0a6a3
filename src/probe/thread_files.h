// The kernel's files about one thread, /proc/PID/task/TID/{schedstat,stat,syscall,wchan}: kept open
// where that pays, since a stack probe reads them many times a second.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fs.h"
#include "base/result.h"

namespace flatout::probe {

/// How many files may be kept open, shared by all threads.
struct FileBudget {
  int left = 0;
  /// A share of this process's limit on open files.
  static FileBudget from_limit();
};

class ThreadFiles {
 public:
  enum File { kSchedstat, kStat, kSyscall, kWchan, kCount };

  ThreadFiles() = default;
  ~ThreadFiles() { close_all(); }
  ThreadFiles(ThreadFiles&& other) noexcept { *this = std::move(other); }
  ThreadFiles& operator=(ThreadFiles&& other) noexcept;

  /// The text of a file in `buffer`, valid until the next call with it.
  /// Errors: kNotFound, kGone (the thread has ended), kDenied, kIo.
  Result<std::string_view> read(const fs::Root& root, int32_t pid, int32_t tid, File file,
                                std::array<char, 1024>& buffer, FileBudget& budget);
  void close_all();

 private:
  std::array<int, kCount> fds_{-1, -1, -1, -1};
  FileBudget* budget_ = nullptr;
};

}  // namespace flatout::probe

#include "devlimit/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "devlimit/ledger.h"
#include "devlimit/say.h"

namespace flatout::devlimit {
namespace {

constexpr int kNotOpen = 0, kNone = -1;  // 0 is never a number that open() gives here
int g_file[kMostDevices];

// The file, or, where that is there already, one with the process's number behind its name, and
// then a count: FILE, FILE.4121, FILE.4121.2.
int open_file(int row) {
  const char* const path = ::getenv("FLATOUT_DEVLIMIT_RECORD");
  if (path == nullptr || path[0] == 0) return kNone;
  char name[PATH_MAX];
  snprintf(name, sizeof name, "%s", path);
  for (int next = 1; next <= 2 * kMostDevices; ++next) {
    const int fd = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd > 0) {
      const int n =
          snprintf(name, sizeof name, "{\"op\":\"meta\",\"name\":\"process %d, card %d\"}\n",
                   ::getpid(), row);
      if (::write(fd, name, static_cast<size_t>(n)) == n) return fd;
      ::close(fd);
    }
    if (fd <= 0 && errno != EEXIST) break;
    const int n = snprintf(name, sizeof name, "%s.%d", path, ::getpid());
    if (next > 1 && n > 0 && static_cast<size_t>(n) < sizeof name)
      snprintf(name + n, sizeof name - static_cast<size_t>(n), ".%d", next);
  }
  say("FLATOUT_DEVLIMIT_RECORD=%s cannot be written: nothing is recorded", path);
  return kNone;
}

// One write, so that the file is whole lines however the process ends.
void put(int row, const char* format, ...) __attribute__((format(printf, 2, 3)));
void put(int row, const char* format, ...) {
  if (row < 0 || row >= kMostDevices || g_file[row] == kNone) return;
  const int before = errno;
  if (g_file[row] == kNotOpen) g_file[row] = open_file(row);
  if (g_file[row] > 0) {
    timespec now = {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start has just begun it
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    n += snprintf(line + n, sizeof line - static_cast<size_t>(n), ",\"t\":%lld}\n",
                  static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
    [[maybe_unused]] const ssize_t written = ::write(g_file[row], line, static_cast<size_t>(n));
  }
  errno = before;
}

unsigned long long wide(uint64_t number) { return number; }

}  // namespace

void record_taken(int row, uint64_t id, uint64_t bytes) {
  if (bytes > 0) put(row, R"({"op":"a","id":%llu,"size":%llu)", wide(id), wide(bytes));
}

void record_freed(int row, uint64_t id) { put(row, R"({"op":"f","id":%llu)", wide(id)); }

void record_refused(int row, uint64_t bytes) {
  put(row, R"({"op":"oom","size":%llu)", wide(bytes));
}

void forget_records() {
  for (int& file : g_file) {
    if (file > 0) ::close(file);
    file = kNotOpen;
  }
}

}  // namespace flatout::devlimit

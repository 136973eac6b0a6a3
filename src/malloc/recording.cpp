#include "malloc/recording.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "malloc/lock.h"
#include "malloc/os.h"
#include "malloc/profile.h"
#include "malloc/python.h"
#include "malloc/text.h"

namespace flatout::malloc {
namespace {

constexpr size_t kNever = SIZE_MAX;
constexpr size_t kLongestName = 400;  // of a file or function; its end is kept
constexpr unsigned kMostFiles = 1000;

std::atomic<size_t> g_least{kNever};
constinit Lock g_lock;
// All under g_lock.
char g_path[512];
int g_file = -1;
uint64_t g_last = 0, g_inherited = 0;  // ids: the last one, and up to which they are a parent's

const char* last_part(const char* text) {
  const size_t length = std::strlen(text);
  return length > kLongestName ? text + (length - kLongestName) : text;
}

/// Bytes of the UTF-8 character at `text`; 0 where there is none.
size_t character(const char* text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at(0) < 0x80) return 1;
  const size_t length = at(0) >= 0xf0 ? 4 : at(0) >= 0xe0 ? 3 : 2;
  if (at(0) < 0xc2 || at(0) > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (at(i) >> 6 != 2) return 0;
  }
  // Too long for what they say, surrogates, beyond the last character.
  if ((at(0) == 0xe0 && at(1) < 0xa0) || (at(0) == 0xed && at(1) > 0x9f) ||
      (at(0) == 0xf0 && at(1) < 0x90) || (at(0) == 0xf4 && at(1) > 0x8f)) {
    return 0;
  }
  return length;
}

/// One line, made before the lock is taken: dladdr() waits for whoever loads a library, who may
/// wait for the lock.
class Line {
 public:
  explicit Line(const char* begin) { add(begin); }
  Line& add(const char* text) {
    while (*text != 0 && used_ < kRoom) buffer_[used_++] = *text++;
    return *this;
  }
  Line& add(const Line& other) {
    for (size_t i = 0; i < other.used_ && used_ < kRoom; ++i) buffer_[used_++] = other.buffer_[i];
    return *this;
  }
  Line& number(uint64_t value, unsigned base = 10) {
    char digits[65];
    *write_digits(digits, value, base) = 0;
    return add(digits);
  }
  /// `text` within a JSON string.
  Line& quoted(const char* text) {
    for (text = last_part(text); *text != 0;) {
      const size_t length = character(text);
      char one[5] = "?";
      if (length > 0 && static_cast<unsigned char>(*text) >= 0x20) std::memcpy(one, text, length);
      if (*text == '"' || *text == '\\') add("\\");
      add(one);
      text += length > 0 ? length : 1;
    }
    return *this;
  }
  Line& site(const Stack* stack);
  /// One write(2): whole however the process ends. A full disk is no reason to stop the job.
  void write_to(int file) {
    buffer_[used_++] = '\n';
    [[maybe_unused]] const ssize_t written = os_write(file, buffer_, used_);
  }

 private:
  // More than two names with all their characters escaped.
  static constexpr size_t kRoom = 2000;
  size_t used_ = 0;
  char buffer_[kRoom + 1];
};

bool is_library(const char* file) {
  return std::strstr(file, "site-packages/") != nullptr ||
         std::strstr(file, "/lib/python") != nullptr ||
         std::strstr(file, "/flatout/agent/") != nullptr || std::strncmp(file, "<frozen ", 8) == 0;
}

/// As the device's pools write it: "train.py:17 forward", or "make_batch+0x2a" without Python.
Line& Line::site(const Stack* stack) {
  if (stack == nullptr) return *this;
  const PythonPlace* line = nullptr;
  for (unsigned i = 0; i < stack->python; ++i) {
    const PythonPlace* place = python_place(static_cast<uint32_t>(stack->frame[stack->native + i]));
    if (place == nullptr) continue;
    const bool own = !is_library(place->file());
    if (line == nullptr || own) line = place;
    if (own) break;
  }
  if (line != nullptr) {
    add(",\"site\":\"").quoted(line->file()).add(":").number(line->line).add(" ");
    return quoted(line->function()).add("\"");
  }
  Dl_info ours{};
  ::dladdr(reinterpret_cast<void*>(&start_recording), &ours);
  for (unsigned i = 0; i < stack->native; ++i) {
    const uintptr_t pc = stack->frame[i] - 1;
    Dl_info info{};
    if (::dladdr(reinterpret_cast<void*>(pc), &info) == 0 || info.dli_fname == nullptr ||
        info.dli_fbase == ours.dli_fbase) {
      continue;
    }
    const char* slash = std::strrchr(info.dli_fname, '/');
    const char* file = slash != nullptr ? slash + 1 : info.dli_fname;
    const void* from = info.dli_sname != nullptr ? info.dli_saddr : info.dli_fbase;
    add(",\"site\":\"").quoted(info.dli_sname != nullptr ? info.dli_sname : file).add("+0x");
    return number(pc - reinterpret_cast<uintptr_t>(from), 16).add("\"");
  }
  return *this;
}

/// Under a high number: a job that closes all files and opens its own must not find its file
/// written to.
int create(const char* path) {
  constexpr int kHigh = 900;
  // open(2) would be a place for the thread to be cancelled at, with the lock held.
  int cancelable = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable);
  const int low = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  const int failed = errno;
  pthread_setcancelstate(cancelable, nullptr);
  errno = failed;
  const int high = low < 0 ? -1 : ::fcntl(low, F_DUPFD_CLOEXEC, kHigh);
  if (high < 0) return low;
  os_close(low);
  return high;
}

/// Opens the file at the first line. False: there is none, which was said.
bool is_open() {
  if (g_file >= 0) return true;
  if (g_path[0] == 0) return false;
  char name[sizeof g_path + 130];
  std::strcpy(name, g_path);
  for (unsigned next = 1; (g_file = create(name)) < 0 && errno == EEXIST && next < kMostFiles;
       ++next) {
    char* end = name + std::strlen(g_path);
    *end++ = '.';
    end = write_digits(end, static_cast<uint64_t>(::getpid()));
    if (next > 1) {
      *end++ = '.';
      end = write_digits(end, next);
    }
    *end = 0;
  }
  if (g_file < 0) {
    os_message("the recording of requests cannot be written, errno",
               reinterpret_cast<void*>(static_cast<intptr_t>(errno)));
    g_path[0] = 0;
    g_least.store(kNever, std::memory_order_relaxed);
    return false;
  }
  Line("{\"op\":\"meta\",\"name\":\"")
      .quoted(program_invocation_short_name)
      .add("\",\"pid\":")
      .number(static_cast<uint64_t>(::getpid()))
      .add("}")
      .write_to(g_file);
  return true;
}

}  // namespace

void start_recording(const char* path, size_t least) {
  const LockHolder hold(g_lock);
  std::strncpy(g_path, path, sizeof g_path - 1);
  g_least.store(g_path[0] != 0 ? least : kNever, std::memory_order_relaxed);
}

bool is_recorded(size_t bytes) { return bytes >= g_least.load(std::memory_order_relaxed); }

uint64_t record_allocated(size_t bytes, const Stack* stack) {
  const int saved = errno;
  Line rest(",\"size\":");
  rest.number(bytes).site(stack).add(",\"t\":");
  uint64_t id = 0;
  {
    const LockHolder hold(g_lock);
    if (is_open()) {
      id = ++g_last;
      Line("{\"op\":\"a\",\"id\":")
          .number(id)
          .add(rest)
          .number(os_now_ns())
          .add("}")
          .write_to(g_file);
    }
  }
  errno = saved;
  return id;
}

void record_freed(uint64_t id) {
  if (id == 0) return;
  const int saved = errno;
  {
    const LockHolder hold(g_lock);
    if (id > g_inherited && is_open()) {
      Line("{\"op\":\"f\",\"id\":")
          .number(id)
          .add(",\"t\":")
          .number(os_now_ns())
          .add("}")
          .write_to(g_file);
    }
  }
  errno = saved;
}

void record_refused(size_t bytes, const Stack* stack) {
  const int saved = errno;
  Line line("{\"op\":\"oom\",\"size\":");
  line.number(bytes).site(stack).add("}");
  {
    const LockHolder hold(g_lock);
    if (is_open()) line.write_to(g_file);
  }
  errno = saved;
}

void record_step() {
  if (g_least.load(std::memory_order_relaxed) == kNever) return;
  const LockHolder hold(g_lock);
  if (is_open()) Line("{\"op\":\"mark\"}").write_to(g_file);
}

void lock_recording() { g_lock.lock(); }
void unlock_recording() { g_lock.unlock(); }
void reset_recording() {
  if (g_file >= 0) os_close(g_file);
  g_file = -1;
  g_inherited = g_last;
  g_lock.reset();
}

}  // namespace flatout::malloc

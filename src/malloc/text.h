// Writing text to a file without allocating: a small buffer and write(2).
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

/// Writes a number's digits to `out`, which has room for 64; returns behind them.
inline char* write_digits(char* out, uint64_t value, unsigned base = 10) {
  char digits[64];
  unsigned n = 0;
  do {
    digits[n++] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  while (n > 0) *out++ = digits[--n];
  return out;
}

/// As long as there is one its thread is not cancelled: the program called malloc or free, which
/// are no places for that.
class Text {
 public:
  explicit Text(const char* path) : Text(-1) {
    fd_ = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    owned_ = true;
    if (fd_ < 0) error_ = errno;
  }
  explicit Text(int fd) : fd_(fd) { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable_); }
  ~Text() {
    finish();
    pthread_setcancelstate(cancelable_, nullptr);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  bool ok() const { return error_ == 0; }
  int error() const { return error_; }

  Text& add(const char* text) {
    for (; *text != 0; ++text) put(*text);
    return *this;
  }
  Text& number(uint64_t value, unsigned base = 10) {
    char digits[65];
    *write_digits(digits, value, base) = 0;
    return add(digits);
  }
  Text& hex(uint64_t value) { return number(value, 16); }
  /// The contents of another file; nothing if it cannot be read.
  Text& file(const char* path) {
    const int from = ::open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0) return *this;
    char block[4096];
    for (ssize_t got; (got = ::read(from, block, sizeof block)) > 0;) {
      for (ssize_t i = 0; i < got; ++i) put(block[i]);
    }
    ::close(from);
    return *this;
  }
  /// Writes what is left; 0, or the first errno.
  int finish() {
    flush();
    if (owned_ && fd_ >= 0) ::close(fd_);
    fd_ = -1;
    return error_;
  }

 private:
  void put(char c) {
    if (used_ == sizeof buffer_) flush();
    buffer_[used_++] = c;
  }
  void flush() {
    size_t at = 0;
    while (fd_ >= 0 && error_ == 0 && at < used_) {
      const ssize_t n = ::write(fd_, buffer_ + at, used_ - at);
      if (n > 0) at += static_cast<size_t>(n);
      if (n < 0 && errno != EINTR) error_ = errno;
    }
    used_ = 0;
  }

  int fd_;
  bool owned_ = false;
  int cancelable_ = PTHREAD_CANCEL_ENABLE;
  int error_ = 0;
  size_t used_ = 0;
  char buffer_[2048];
};

}  // namespace flatout::malloc

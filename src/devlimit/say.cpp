#include "devlimit/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>

namespace flatout::devlimit {

void say(const char* format, ...) {
  static std::atomic<const char*> said[16];
  for (auto& one : said) {
    const char* before = nullptr;
    if (one.compare_exchange_strong(before, format)) break;
    if (before == format) return;
  }
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  int n = snprintf(text, sizeof text, "flatout: warning: ");
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start has just begun it
  n += vsnprintf(text + n, sizeof text - static_cast<size_t>(n) - 1, format, arguments);
  va_end(arguments);
  if (n > static_cast<int>(sizeof text) - 2) n = static_cast<int>(sizeof text) - 2;
  text[n] = '\n';
  // One write, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t put = ::write(2, text, static_cast<size_t>(n) + 1);
}

}  // namespace flatout::devlimit

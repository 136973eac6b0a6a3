#include "base/log.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>

namespace flatout {
namespace {
std::atomic<bool> g_verbose{false};
}

void set_verbose(bool on) { g_verbose = on; }

void log_info(std::string_view message) {
  if (g_verbose) fmt::print(stderr, "flatout: {}\n", message);
}

void log_warning(std::string_view message) {
  fmt::print(stderr, "flatout: warning: {}\n", message);
}

void log_error(std::string_view message, std::string_view hint) {
  fmt::print(stderr, "flatout: error: {}\n", message);
  if (!hint.empty()) fmt::print(stderr, "flatout: hint: {}\n", hint);
}

}  // namespace flatout

#include "base/log.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <string>

namespace flatout {
namespace {
std::atomic<bool> g_verbose{false};

// fmt::print throws where stderr is a closed pipe; the job must go on all the same.
void say(const std::string& line) { std::fputs(line.c_str(), stderr); }
}  // namespace

void set_verbose(bool on) { g_verbose = on; }

void log_info(std::string_view message) {
  if (g_verbose) say(fmt::format("flatout: {}\n", message));
}

void log_warning(std::string_view message) { say(fmt::format("flatout: warning: {}\n", message)); }

void log_error(std::string_view message, std::string_view hint) {
  say(fmt::format("flatout: error: {}\n", message));
  if (!hint.empty()) say(fmt::format("flatout: hint: {}\n", hint));
}

}  // namespace flatout

#include "base/log.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace flatout {
namespace {
// fmt::print throws where stderr is a closed pipe; the job must go on all the same.
void say(const std::string& line) { std::fputs(line.c_str(), stderr); }
}  // namespace

void log_warning(std::string_view message) { say(fmt::format("flatout: warning: {}\n", message)); }

void log_error(std::string_view message, std::string_view hint) {
  say(fmt::format("flatout: error: {}\n", message));
  if (!hint.empty()) say(fmt::format("flatout: hint: {}\n", hint));
}

}  // namespace flatout

#include "cli/json_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/fs.h"
#include "base/log.h"
#include "cli/outputs.h"

namespace flatout::cli {
namespace {

// A file in memory stands in for standard output: nothing is left behind by a command that is
// killed, and an older result stays until there is a new one.
std::string file_name;
int kept_output = -1;

std::string printed() {
  std::string out;
  char buffer[65536];
  off_t at = 0;
  for (ssize_t got; (got = ::pread(STDOUT_FILENO, buffer, sizeof buffer, at)) > 0; at += got) {
    out.append(buffer, static_cast<size_t>(got));
  }
  return out;
}

}  // namespace

void begin_json_file(std::string path) {
  std::fflush(stdout);
  const int memory = ::memfd_create("flatout-json", MFD_CLOEXEC);
  kept_output = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);  // -1 where it is closed
  if (memory < 0 || ::dup2(memory, STDOUT_FILENO) < 0) {
    log_warning(fs::error_from_errno(errno, "--json=FILE: the result is printed").message);
  } else {
    file_name = std::move(path);
  }
  if (memory >= 0) ::close(memory);
}

int end_json_file(int exit_code) {
  if (file_name.empty()) return exit_code;
  const std::string path = std::exchange(file_name, "");
  std::fflush(stdout);
  const std::string text = printed();
  if (kept_output >= 0) {
    ::dup2(kept_output, STDOUT_FILENO);
    ::close(std::exchange(kept_output, -1));
  } else {
    ::close(STDOUT_FILENO);
  }
  if (text.empty()) return exit_code;  // it has failed, and said why
  const Status put = write_text(path, text);
  if (put.ok()) return exit_code;
  log_error(put.error().message, put.error().hint);
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace flatout::cli

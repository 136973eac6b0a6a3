#include "cli/live.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/outputs.h"
#include "recorder/redact.h"
#include "screen/live.h"

namespace flatout::cli {
namespace {

constexpr std::string_view kInstead = "flatout top PID in another terminal shows the same";

bool has_room() {
  const char* term = std::getenv("TERM");
  if (term == nullptr || *term == 0 || std::string_view(term) == "dumb") return false;
  const int terminal = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  winsize size{};
  const bool known = terminal >= 0 && ::ioctl(terminal, TIOCGWINSZ, &size) == 0;
  if (terminal >= 0) ::close(terminal);
  return known && screen::live_rows(size.ws_row) > 0;
}

}  // namespace

LiveSocket open_live() {
  LiveSocket out;
  int ends[2];
  if (!has_room()) {
    log_warning(fmt::format("--live needs a terminal of 16 lines; {}", kInstead));
  } else if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
    out = {ends[0], ends[1]};
  }
  return out;
}

std::unique_ptr<HelperProcess> start_live(const LiveSocket& socket, int32_t job) {
  auto helper = HelperProcess::start({std::string(kLiveView), std::to_string(job)}, socket.view);
  if (helper == nullptr) log_warning(fmt::format("cannot start --live; {}", kInstead));
  return helper;
}

int live_view(const std::vector<std::string>& arguments) {
  screen::LiveOptions options;
  options.job_pid = arguments.empty() ? 0 : parse_number<int32_t>(arguments[0]).value_or(0);
  if (options.job_pid <= 0) return 2;
  options.group = ::getpgid(::getppid());
  options.status_fd = STDIN_FILENO;
  options.sampler.self_pid = static_cast<int32_t>(::getpid());
  options.sampler.redact = recorder::recordable_environment;
  const Status done = screen::run_live(options);
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace flatout::cli

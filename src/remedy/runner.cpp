#include "remedy/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fs.h"
#include "base/output.h"
#include "base/page_residency.h"
#include "base/text.h"
#include "remedy/isolation.h"

namespace flatout::remedy {
namespace {

volatile sig_atomic_t stop_signal = 0;

void on_signal(int signal) { stop_signal = signal; }

constexpr size_t kMostInput = 64 << 20;  // bytes of standard input
constexpr int kInputPatienceMs = 1000;
constexpr size_t kMostOpened = 64 << 20;  // bytes of their names

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

Result<std::unique_ptr<JobRunner>> JobRunner::open(std::vector<std::string> command,
                                                   double budget_seconds, Judge judge,
                                                   std::function<void(const std::string&)> tell,
                                                   Watch watch) {
  std::unique_ptr<JobRunner> out(new JobRunner(std::move(command), budget_seconds, std::move(judge),
                                               std::move(tell), std::move(watch)));
  out->take_input();
  remove_stale_scratch("/var/tmp");
  remove_stale_scratch("/tmp");
  FLATOUT_TRY(out->scratch_, Scratch::make());
  const std::string probe = out->scratch_->path() + "/probe";
  if (::mkdir(probe.c_str(), 0700) != 0) return fs::error_from_errno(errno, "cannot make " + probe);
  if (const Status can = can_isolate(probe); !can.ok())
    out->why_not_isolated_ = can.error().message;
  remove_all(probe);
  watch_signals();
  return out;
}

JobRunner::~JobRunner() {
  if (input_ > STDERR_FILENO) ::close(input_);
}

// Each run is to read what the first one would: a file is read anew, of a pipe what comes is kept.
// A terminal is for the user. A pipe that nobody writes into is no reason to wait.
void JobRunner::take_input() {
  struct stat info = {};
  if (::fstat(STDIN_FILENO, &info) != 0) return;
  if (S_ISREG(info.st_mode)) {
    input_ = STDIN_FILENO;
    input_from_ = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
    return;
  }
  if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) return;
  input_ = ::memfd_create("flatout-input", MFD_CLOEXEC);
  if (input_ < 0) return;
  char buffer[1 << 16];
  size_t kept = 0;
  bool ended = false;
  while (!ended && kept < kMostInput) {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    if (::poll(&waiting, 1, kInputPatienceMs) <= 0) break;
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    ended = got <= 0;
    if (ended || !fs::write_all(input_, {buffer, static_cast<size_t>(got)}, "memory").ok()) break;
    kept += static_cast<size_t>(got);
  }
  if (!ended && kept > 0) {
    tell_(fmt::format("of standard input, which has not ended, each run gets the first {} bytes",
                      kept));
  }
}

// A run leaves the files that it read in the page cache. Where the first one found them on the
// disk, all others begin so: else only one would wait for it, and whatever comes later would look
// better.
void JobRunner::let_go_of_files() {
  for (const std::string& path : opened_) {
    const auto file = QuietFile::open(path);
    if (file.ok()) ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

Result<TrialRun> JobRunner::run(const Setting& setting, const Length& length, bool show_output) {
  const std::string folder = fmt::format("{}/{}", scratch_->path(), ++runs_);
  if (::mkdir(folder.c_str(), 0700) != 0)
    return fs::error_from_errno(errno, "cannot make " + folder);
  if (cold_) let_go_of_files();
  auto out = run_trial(command_, setting, length,
                       {folder, why_not_isolated_.empty(), show_output, input_, input_from_},
                       judge_, watch_, [this] { return stopped(); });
  if (const auto text = fs::Root(folder).read("opened", kMostOpened); text.ok()) {
    std::string_view rest = *text, line;
    while (next_line(rest, line)) opened_.emplace(line);
  }
  if (runs_ == 1 && out.ok()) cold_ = waited_for_disk(*out);
  remove_all(folder);
  return out;
}

double JobRunner::seconds_left() { return budget_ - 1e-3 * to_ms(MonotonicClock::now() - begin_); }

bool JobRunner::stopped() { return stop_signal != 0; }

}  // namespace flatout::remedy

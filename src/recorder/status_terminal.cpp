#include "recorder/status_terminal.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::recorder {
namespace {

constexpr Nanos kSilence = std::chrono::seconds(2);

// The number of our controlling terminal: field 7 of /proc/self/stat.
dev_t controlling_terminal() {
  const auto text = fs::Root("/").read("proc/self/stat", 4096);
  if (!text.ok()) return 0;
  std::string_view rest = *text;
  rest.remove_prefix(std::min(rest.rfind(')') + 1, rest.size()));
  std::string_view word;
  for (int field = 3; field <= 7; ++field) word = next_word(rest);
  const auto number = static_cast<uint32_t>(parse_number<int64_t>(word).value_or(0));
  return makedev(number >> 8 & 0xFFF, (number & 0xFF) | (number >> 12 & 0xFFF00));
}

bool is_file_kind(int fd, mode_t kind) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

}  // namespace

std::unique_ptr<StatusTerminal> StatusTerminal::open(EventLoop& loop) {
  const char* term = std::getenv("TERM");
  if (term == nullptr || *term == 0 || std::string_view(term) == "dumb") return nullptr;
  // Output that goes into a pipe with errors and all is read by a program that may draw itself.
  const bool seen = ::isatty(STDERR_FILENO) == 1 || ::isatty(STDOUT_FILENO) == 1 ||
                    (is_file_kind(STDERR_FILENO, S_IFREG) && is_file_kind(STDOUT_FILENO, S_IFREG));
  if (!seen) return nullptr;
  // Not blocking: Ctrl-S must not stop the recording.
  const int fd = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return nullptr;
  std::unique_ptr<StatusTerminal> out(new StatusTerminal(loop, fd));
  out->titles_ = std::string_view(term) != "linux";
  out->last_output_ = MonotonicClock::now();
  if (!out->watch_output()) return nullptr;
  return out;
}

bool StatusTerminal::watch_output() {
  const dev_t ours = controlling_terminal();
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO}) {
    struct stat info;
    if (::fstat(fd, &info) != 0 || !S_ISCHR(info.st_mode) || info.st_rdev != ours) continue;
    if (inotify_ < 0) inotify_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (inotify_ < 0) return false;
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    // Two descriptors may lead to one file: then this is the same watch again.
    if (::inotify_add_watch(inotify_, path.c_str(), IN_MODIFY) < 0) return false;
  }
  return true;
}

StatusTerminal::~StatusTerminal() {
  hide();
  if (!title_.empty()) write_out("\x1b[23;0t");  // the title that was there before
  if (inotify_ >= 0) ::close(inotify_);
  ::close(terminal_);
}

bool StatusTerminal::take_events() {
  if (inotify_ < 0) return false;
  alignas(inotify_event) char events[4096];
  bool any = false;
  while (::read(inotify_, events, sizeof events) > 0) any = true;
  return any;
}

void StatusTerminal::job_wrote(TimePoint now) {
  last_output_ = now;
  if (!shown_) return;
  // Its text may have run into the line: what is left of it stands right of or below the cursor.
  loop_.remove(inotify_);
  shown_ = false;
  if (ours_now()) write_out("\x1b[J");
}

bool StatusTerminal::ours_now() const { return ::tcgetpgrp(terminal_) == ::getpgrp(); }

bool StatusTerminal::may_write() const {
  termios mode{};
  // A pager, an editor or a debugger reads single keys: the screen is its own.
  return ours_now() && ::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & ICANON) != 0;
}

bool StatusTerminal::is_silent(TimePoint now) {
  if (take_events()) job_wrote(now);
  return now - last_output_ >= kSilence;
}

void StatusTerminal::set_title(const std::string& title) {
  if (!titles_ || title.empty() || title == title_) return;
  // The first one keeps the title that was there before.
  write_out((title_.empty() ? "\x1b[22;0t" : "") + ("\x1b]2;" + title + "\x07"));
  title_ = title;
}

void StatusTerminal::insert_line(const std::string& line) {
  // A line further and back again makes room below, as in draw(). Then: remember the place, push
  // the job's line down, write in its stead, and go down after it. One write: nothing comes
  // between.
  write_out(
      "\x1b"
      "D\x1bM\x1b"
      "7\r\x1b[L" +
      line +
      "\x1b"
      "8\x1b[B");
}

void StatusTerminal::draw(const std::string& line) {
  // A line further and back again: now there is a line below, also at the bottom of the screen.
  // Then: remember the place, write into that line, return.
  write_out(
      "\x1b"
      "D\x1bM\x1b"
      "7\x1b[1E\x1b[2K" +
      line +
      "\x1b"
      "8");
  if (!shown_ && inotify_ >= 0) {
    shown_ = loop_
                 .add(inotify_, EPOLLIN,
                      [this](uint32_t) {
                        if (take_events()) job_wrote(MonotonicClock::now());
                      })
                 .ok();
  }
  shown_ = true;
}

void StatusTerminal::hide() {
  if (!shown_) return;
  if (inotify_ >= 0) loop_.remove(inotify_);
  shown_ = false;
  if (!ours_now()) return;
  const bool wrote = take_events();
  write_out(wrote ? "\x1b[J"
                  : "\x1b"
                    "7\x1b[1E\x1b[2K\x1b"
                    "8");
}

void StatusTerminal::write_out(const std::string& text) const {
  // A terminal that takes nothing now (Ctrl-S) does without.
  [[maybe_unused]] const ssize_t written = ::write(terminal_, text.data(), text.size());
}

}  // namespace flatout::recorder

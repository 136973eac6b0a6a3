#include "screen/live.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>

#include "base/fs.h"
#include "screen/render.h"

namespace flatout::screen {
namespace {

constexpr int kLeastHeight = 16;
constexpr int kMostRows = 24;
constexpr timespec kTick{0, 100'000'000};
constexpr std::string_view kSave =
                               "\x1b"
                               "7",
                           kRestore =
                               "\x1b"
                               "8";

std::string_view look_of(Style style) {
  switch (style) {
    case Style::kDim:
    case Style::kCache:
      return "\x1b[2m";
    case Style::kHeading:
    case Style::kSorted:
      return "\x1b[7m";
    case Style::kBold:
    case Style::kTitle:
    case Style::kName:
    case Style::kWarning:
    case Style::kMessage:
    case Style::kWait:
      return "\x1b[1m";
    default:
      return "";
  }
}

class LiveView {
 public:
  LiveView(const LiveOptions& options, int terminal)
      : options_(options),
        terminal_(terminal),
        unicode_(std::string_view(::nl_langinfo(CODESET)) == "UTF-8"),
        sampler_(options.sampler),
        session_(options.sampler.root, options.job_pid, options.delay_s) {}
  ~LiveView() {
    hide();
    ::close(terminal_);
  }
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// False: the status has ended, and with it the run.
  bool tick(TimePoint now) {
    if (!read_status()) return false;
    // Stopped by Ctrl-Z, or another job of the shell's: the screen is not ours.
    if (::tcgetpgrp(terminal_) != options_.group) {
      hide();
      return true;
    }
    termios mode{};
    // A pager, an editor or a debugger draws itself; the view comes back after it.
    if (::tcgetattr(terminal_, &mode) != 0 || (mode.c_lflag & ICANON) == 0) return true;
    winsize size{};
    if (::ioctl(terminal_, TIOCGWINSZ, &size) != 0) return true;
    if (size.ws_row != height_ || size.ws_col != width_) {
      hide();
      height_ = size.ws_row;
      width_ = size.ws_col;
      due_ = {};
    }
    if (now < due_) return true;
    if (now >= next_look_) {
      session_.add(sampler_.look({}));
      next_look_ = now + nanos(options_.delay_s * 1e9);
    }
    due_ = next_look_;
    draw();
    return true;
  }

 private:
  bool read_status() {
    char buffer[4096];
    const ssize_t got = ::read(options_.status_fd, buffer, sizeof buffer);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    partial_.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = partial_.find('\n')) != std::string::npos;) {
      status_ = partial_.substr(0, end);
      partial_.erase(0, end + 1);
      due_ = {};
    }
    return true;
  }

  void draw() {
    if (!shown_) rows_ = live_rows(height_);
    if (rows_ == 0) return;
    // The row of keys at the view's bottom is cut off: they are the job's.
    session_.resize(width_, rows_);
    const Frame frame = render(session_, unicode_);
    std::vector<std::string> lines = {status_};
    for (int y = 0; y + 1 < rows_; ++y) lines.push_back(live_line(frame.canvas, y));
    if (!shown_) write(live_begin(height_, rows_));
    shown_ = true;
    write(live_draw(height_, lines));
  }

  void hide() {
    if (shown_) write(live_end(height_, rows_));
    shown_ = false;
  }

  void write(const std::string& text) const {
    (void)!::write(terminal_, text.data(),
                   text.size());  // at once, or the job's would come between
  }

  LiveOptions options_;
  int terminal_;
  bool unicode_;
  Sampler sampler_;
  Session session_;
  std::string status_, partial_;
  TimePoint due_{}, next_look_{};
  int height_ = 0, width_ = 0, rows_ = 0;
  bool shown_ = false;
};

}  // namespace

int live_rows(int height) { return height < kLeastHeight ? 0 : std::min(height / 2, kMostRows); }

std::string live_begin(int height, int rows) {
  std::string out;
  for (int i = 0; i < rows; ++i)
    out +=
        "\x1b"
        "D";  // a line further, in the same column
  return fmt::format("{}\x1b[{}A{}\x1b[1;{}r{}", out, rows, kSave, height - rows, kRestore);
}

std::string live_draw(int height, const std::vector<std::string>& lines) {
  const int rows = static_cast<int>(lines.size());
  // The region anew, too: a program that was full-screen in between has taken it away.
  std::string out = fmt::format("{}\x1b[?25l\x1b[1;{}r", kSave, height - rows);
  for (int i = 0; i < rows; ++i) {
    out += fmt::format("\x1b[{};1H\x1b[0m\x1b[2K{}", height - rows + 1 + i,
                       lines[static_cast<size_t>(i)]);
  }
  return out + "\x1b[?25h" + std::string(kRestore);
}

std::string live_end(int height, int rows) {
  return fmt::format("{}\x1b[r\x1b[{};1H\x1b[0m\x1b[J{}", kSave, height - rows + 1, kRestore);
}

std::string live_line(const Canvas& canvas, int y) {
  std::string out;
  int end = canvas.width();
  while (end > 0 && canvas.at(end - 1, y) == Cell{}) --end;
  std::string_view look;
  for (int x = 0; x < end; ++x) {
    const Cell& cell = canvas.at(x, y);
    if (cell.character == 0) continue;  // the right half of a wide one
    if (look_of(cell.style) != look) {
      look = look_of(cell.style);
      out += "\x1b[0m";
      out += look;
    }
    append_utf8(out, cell.character);
  }
  return look.empty() ? out : out + "\x1b[0m";
}

Status run_live(const LiveOptions& options) {
  std::setlocale(LC_CTYPE, "");
  const int terminal = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return fs::error_from_errno(errno, "cannot open /dev/tty");
  ::fcntl(options.status_fd, F_SETFL, O_NONBLOCK);
  ::signal(SIGTTOU, SIG_IGN);  // it draws from the background
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGHUP, SIGINT}) ::sigaddset(&ends, number);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  LiveView view(options, terminal);
  while (view.tick(MonotonicClock::now())) {
    if (::sigtimedwait(&ends, nullptr, &kTick) > 0) break;
  }
  return {};
}

}  // namespace flatout::screen

#include "screen/terminal.h"

#define NCURSES_WIDECHAR 1
#define NCURSES_NOMACROS 1  // they take words like "move" and "timeout"
#include <curses.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "screen/mouse.h"

namespace flatout::screen {
namespace {

volatile sig_atomic_t g_end = 0;

// What a handler of a fatal signal needs to give the terminal back: nothing there may allocate.
termios g_before{};
std::array<char, 256> g_restore{};
size_t g_restore_size = 0;

void on_end(int) { g_end = 1; }

void on_crash(int number) {
  (void)!::write(STDOUT_FILENO, g_restore.data(), g_restore_size);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

const char* capability(const char* name) {
  const char* text = ::tigetstr(name);
  return text == reinterpret_cast<const char*>(-1) ? nullptr : text;
}

void append_restore(const char* text) {
  if (text == nullptr) return;
  const size_t size = std::strlen(text);
  if (g_restore_size + size > g_restore.size()) return;
  std::memcpy(g_restore.data() + g_restore_size, text, size);
  g_restore_size += size;
}

void install(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

constexpr std::array kEnds = {SIGINT, SIGTERM, SIGHUP};
constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

struct Look {
  short front, back;  // -1: the terminal's own
  attr_t attributes;
};
using Palette = std::array<Look, static_cast<size_t>(Style::kCount)>;

// Okabe and Ito's colours, which the colour-blind tell apart, as near as 256 colours come.
constexpr short kOrange = 208, kSky = 75, kGreen = 36, kYellow = 220, kPurple = 175, kGrey = 245;
constexpr Palette kRich = {{
    {-1, -1, 0},            // kPlain
    {kGrey, -1, 0},         // kDim
    {-1, -1, A_BOLD},       // kBold
    {kSky, -1, A_BOLD},     // kTitle
    {16, kGreen, 0},        // kHeading
    {16, kSky, A_BOLD},     // kSorted
    {16, kSky, 0},          // kSelected
    {16, kYellow, 0},       // kFollowed
    {kYellow, -1, A_BOLD},  // kTagged
    {-1, -1, A_BOLD},       // kKey
    {16, kGreen, 0},        // kKeyText
    {kYellow, -1, A_BOLD},  // kMessage
    {kOrange, -1, A_BOLD},  // kWarning
    {kGreen, -1, 0},        // kGood
    {kSky, -1, 0},          // kName
    {kGreen, -1, 0},        // kUser
    {kOrange, -1, 0},       // kSystem
    {kPurple, -1, A_BOLD},  // kWait
    {kGreen, -1, 0},        // kUsed
    {kYellow, -1, 0},       // kCache
    {kSky, -1, 0},          // kCurve
}};
constexpr Palette kEight = {{
    {-1, -1, 0},
    {-1, -1, A_DIM},
    {-1, -1, A_BOLD},
    {COLOR_CYAN, -1, A_BOLD},
    {COLOR_BLACK, COLOR_CYAN, 0},
    {COLOR_BLACK, COLOR_WHITE, 0},
    {COLOR_BLACK, COLOR_CYAN, 0},
    {COLOR_BLACK, COLOR_YELLOW, 0},
    {COLOR_YELLOW, -1, A_BOLD},
    {-1, -1, A_BOLD},
    {COLOR_BLACK, COLOR_CYAN, 0},
    {COLOR_YELLOW, -1, A_BOLD},
    {COLOR_YELLOW, -1, A_BOLD},
    {COLOR_CYAN, -1, 0},
    {COLOR_CYAN, -1, 0},
    {COLOR_CYAN, -1, 0},
    {COLOR_YELLOW, -1, A_BOLD},
    {COLOR_MAGENTA, -1, A_BOLD},
    {COLOR_CYAN, -1, 0},
    {COLOR_YELLOW, -1, 0},
    {COLOR_CYAN, -1, A_BOLD},
}};
constexpr Palette kPlainLooks = {{
    {-1, -1, 0},         {-1, -1, A_DIM},
    {-1, -1, A_BOLD},    {-1, -1, A_BOLD},
    {-1, -1, A_REVERSE}, {-1, -1, A_REVERSE | A_BOLD},
    {-1, -1, A_REVERSE}, {-1, -1, A_REVERSE | A_UNDERLINE},
    {-1, -1, A_BOLD},    {-1, -1, A_BOLD},
    {-1, -1, A_REVERSE}, {-1, -1, A_BOLD},
    {-1, -1, A_BOLD},    {-1, -1, 0},
    {-1, -1, 0},         {-1, -1, 0},
    {-1, -1, A_BOLD},    {-1, -1, A_BOLD},
    {-1, -1, 0},         {-1, -1, A_DIM},
    {-1, -1, 0},
}};

bool wants_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || no_color[0] == 0) && ::has_colors();
}

// What terminals and multiplexers send where $TERM names another one (tmux with xterm-256color,
// PuTTY): else Home would be Esc, [, 1 and ~.
void define_keys() {
  constexpr std::pair<const char*, int> kKeys[] = {
      {"\x1b[1~", KEY_HOME},    {"\x1b[7~", KEY_HOME},  {"\x1b[H", KEY_HOME},
      {"\x1bOH", KEY_HOME},     {"\x1b[4~", KEY_END},   {"\x1b[8~", KEY_END},
      {"\x1b[F", KEY_END},      {"\x1bOF", KEY_END},    {"\x1b[5~", KEY_PPAGE},
      {"\x1b[6~", KEY_NPAGE},   {"\x1b[A", KEY_UP},     {"\x1b[B", KEY_DOWN},
      {"\x1b[C", KEY_RIGHT},    {"\x1b[D", KEY_LEFT},   {"\x1b[1;2C", KEY_SRIGHT},
      {"\x1b[1;2D", KEY_SLEFT}, {"\x1bOP", KEY_F(1)},   {"\x1bOQ", KEY_F(2)},
      {"\x1bOR", KEY_F(3)},     {"\x1bOS", KEY_F(4)},   {"\x1b[11~", KEY_F(1)},
      {"\x1b[12~", KEY_F(2)},   {"\x1b[13~", KEY_F(3)}, {"\x1b[14~", KEY_F(4)},
      {"\x1b[15~", KEY_F(5)},   {"\x1b[17~", KEY_F(6)}, {"\x1b[18~", KEY_F(7)},
      {"\x1b[19~", KEY_F(8)},   {"\x1b[20~", KEY_F(9)}, {"\x1b[21~", KEY_F(10)},
      {"\x1b[[A", KEY_F(1)},    {"\x1b[[B", KEY_F(2)},  {"\x1b[[C", KEY_F(3)},
      {"\x1b[[D", KEY_F(4)},    {"\x1b[[E", KEY_F(5)},
  };
  for (const auto& [sequence, code] : kKeys) {
    if (::key_defined(sequence) == 0) ::define_key(sequence, code);
  }
}

// The starts of mouse reports, as keys beyond those of terminfo (unsigned short in ncurses).
constexpr int kMouseDecimal = 0x7f01, kMouseBytes = 0x7f02;

// curses switches the mouse on and off, also around a stop by Ctrl-Z, but does not read it: it
// gathers reports into clicks by the time between them, gives a run's newest event only, and while
// it holds back one that nobody asked for it sleeps in read(), with nodelay too.
void define_mouse() {
  if (capability("kmous") == nullptr) return;  // else gpm's, whose descriptor nobody waits for
  ::mousemask(BUTTON1_PRESSED, nullptr);
  ::define_key(nullptr, KEY_MOUSE);
  ::define_key("\x1b[<", kMouseDecimal);
  ::define_key("\x1b[M", kMouseBytes);
}

// What curses has not read yet: it takes one byte at a time, and only those of a key.
std::optional<unsigned char> waiting_byte() {
  pollfd fd{STDIN_FILENO, POLLIN, 0};
  unsigned char byte = 0;
  if (::poll(&fd, 1, 0) <= 0 || ::read(STDIN_FILENO, &byte, 1) != 1) return std::nullopt;
  return byte;
}

std::optional<Event> event_of(const MouseReport& report) {
  if (report.act == MouseAct::kNone) return std::nullopt;
  Event event;
  event.kind = report.act == MouseAct::kClick ? Event::Kind::kClick : Event::Kind::kWheel;
  event.x = report.x;
  event.y = report.y;
  if (report.act == MouseAct::kWheelUp) event.rows = -3;
  if (report.act == MouseAct::kWheelDown) event.rows = 3;
  return event;
}

std::optional<Key> key_of(int code) {
  if (code >= KEY_F(1) && code <= KEY_F(12)) return key::f(code - KEY_F(0));
  switch (code) {
    case KEY_UP:
      return key::kUp;
    case KEY_DOWN:
      return key::kDown;
    case KEY_LEFT:
      return key::kLeft;
    case KEY_RIGHT:
      return key::kRight;
    case KEY_SLEFT:
      return key::kShiftLeft;
    case KEY_SRIGHT:
      return key::kShiftRight;
    case KEY_PPAGE:
      return key::kPageUp;
    case KEY_NPAGE:
      return key::kPageDown;
    case KEY_HOME:
      return key::kHome;
    case KEY_END:
      return key::kEnd;
    case KEY_ENTER:
      return key::kEnter;
    case KEY_BACKSPACE:
      return key::kBackspace;
    default:
      return std::nullopt;
  }
}

Key key_of_character(wint_t c) {
  switch (c) {
    case '\n':
    case '\r':
      return key::kEnter;
    case '\t':
      return key::kTab;
    case 0x1b:
      return key::kEscape;
    case 0x7f:
    case 0x08:
      return key::kBackspace;
    default:
      return static_cast<Key>(c);
  }
}

}  // namespace

struct Terminal::Looks {
  SCREEN* screen = nullptr;
  std::array<attr_t, static_cast<size_t>(Style::kCount)> attributes{};
  std::array<short, static_cast<size_t>(Style::kCount)> pairs{};
  sigset_t unblocked{};              // while waiting
  std::optional<Canvas> drawn;       // what the screen shows
  std::optional<MouseReader> mouse;  // of a report whose end has not come
};

Result<std::unique_ptr<Terminal>> Terminal::open() {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) {
    return Error{Code::kUnsupported, "standard input and output are no terminal",
                 "flatout top --once, or --json"};
  }
  std::setlocale(LC_CTYPE, "");
  ::tcgetattr(STDIN_FILENO, &g_before);
  ::set_escdelay(25);
  std::unique_ptr<Terminal> out(new Terminal());
  out->looks_ = std::make_unique<Looks>();
  // Signals are let through only while waiting, so that none is missed between a look and a sleep.
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int number : kEnds) ::sigaddset(&blocked, number);
  ::sigaddset(&blocked, SIGWINCH);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &out->looks_->unblocked);
  for (const int number : kEnds) ::sigdelset(&out->looks_->unblocked, number);
  ::sigdelset(&out->looks_->unblocked, SIGWINCH);
  for (const int number : kEnds) install(number, on_end);

  // curses would believe them rather than the terminal, also after it has changed its size.
  ::unsetenv("LINES");
  ::unsetenv("COLUMNS");
  out->looks_->screen = ::newterm(nullptr, stdout, stdin);
  if (out->looks_->screen == nullptr) {
    const char* term = std::getenv("TERM");
    return Error{Code::kUnsupported,
                 std::string("cannot draw on a terminal of the type '") +
                     (term == nullptr ? "" : term) + "'",
                 "set TERM, or use flatout top --once"};
  }
  if (capability("kmous") != nullptr) append_restore("\x1b[?1006l\x1b[?1000l");  // as in XM
  for (const char* name : {"sgr0", "cnorm", "rmkx", "rmcup"}) append_restore(capability(name));
  for (const int number : kCrashes) install(number, on_crash);
  out->unicode_ = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
  ::cbreak();
  ::noecho();
  ::nonl();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  define_keys();
  ::nodelay(stdscr, TRUE);
  define_mouse();
  out->choose_styles();
  return out;
}

void Terminal::choose_styles() {
  const Palette* palette = &kPlainLooks;
  if (wants_color()) {
    ::start_color();
    ::use_default_colors();
    palette = COLORS >= 256 ? &kRich : &kEight;
  }
  for (size_t i = 0; i < palette->size(); ++i) {
    const Look& look = (*palette)[i];
    looks_->attributes[i] = look.attributes;
    if (look.front < 0 && look.back < 0) continue;
    const auto pair = static_cast<short>(i + 1);
    ::init_pair(pair, look.front, look.back);
    looks_->pairs[i] = pair;
  }
}

Terminal::~Terminal() {
  if (looks_ != nullptr && looks_->screen != nullptr) {
    ::endwin();
    ::delscreen(looks_->screen);
  }
  for (const int number : kCrashes) install(number, SIG_DFL);
}

int Terminal::width() const { return getmaxx(stdscr); }
int Terminal::height() const { return getmaxy(stdscr); }

void Terminal::draw(const Frame& frame) {
  const Canvas& canvas = frame.canvas;
  std::optional<Canvas>& drawn = looks_->drawn;
  if (drawn && (drawn->width() != canvas.width() || drawn->height() != canvas.height())) {
    drawn.reset();
  }
  if (!drawn) ::erase();
  const int rows = std::min(height(), canvas.height());
  const int columns_shown = std::min(width(), canvas.width());
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < columns_shown; ++x) {
      const Cell& cell = canvas.at(x, y);
      if (cell.character == 0) continue;  // drawn with its left half
      if (drawn && drawn->at(x, y) == cell) continue;
      const auto style = static_cast<size_t>(cell.style);
      const wchar_t text[2] = {static_cast<wchar_t>(cell.character), 0};
      cchar_t out;
      ::setcchar(&out, text, looks_->attributes[style], looks_->pairs[style], nullptr);
      ::mvadd_wch(y, x, &out);
    }
  }
  drawn = canvas;
  ::refresh();
}

void Terminal::wait(int wake_fd, Nanos patience) {
  std::array<pollfd, 2> fds = {{{STDIN_FILENO, POLLIN, 0}, {wake_fd, POLLIN, 0}}};
  const int64_t ns = std::max<int64_t>(patience.count(), 0);
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  ::ppoll(fds.data(), fds.size(), &time, &looks_->unblocked);
  // A terminal that is gone stays readable for ever.
  if ((fds[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) g_end = 1;
}

std::optional<Event> Terminal::next() {
  std::optional<MouseReader>& mouse = looks_->mouse;
  wint_t c = 0;
  int got = ERR;
  do {
    while (mouse) {
      const auto byte = waiting_byte();
      if (!byte) return std::nullopt;  // the rest comes later
      if (mouse->add(*byte)) continue;
      const auto event = event_of(mouse->report().value_or(MouseReport()));
      mouse.reset();
      if (event) return event;
    }
    got = ::get_wch(&c);
    if (got == ERR) return std::nullopt;
    if (got == KEY_CODE_YES && c == kMouseDecimal) mouse.emplace(MouseReader::Form::kDecimal);
    if (got == KEY_CODE_YES && c == kMouseBytes) mouse.emplace(MouseReader::Form::kBytes);
  } while (mouse);
  Event event;
  constexpr wint_t kCtrlL = 12;
  if (got != KEY_CODE_YES && c == kCtrlL) {  // somebody else has written to the terminal
    ::clearok(curscr, TRUE);
    looks_->drawn.reset();
    event.kind = Event::Kind::kResize;
    return event;
  }
  if (got != KEY_CODE_YES) {
    event.key = key_of_character(c);
    return event;
  }
  if (c == KEY_RESIZE) {
    event.kind = Event::Kind::kResize;
    return event;
  }
  event.key = key_of(static_cast<int>(c)).value_or(0);
  return event;
}

bool Terminal::told_to_end() { return g_end != 0; }

}  // namespace flatout::screen

#include "screen/render.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>

#include "base/display_width.h"
#include "base/text.h"
#include "probe/reading.h"
#include "screen/help.h"
#include "screen/panels.h"

namespace flatout::screen {
namespace {

constexpr int kLeastTable = 6;  // rows, its heading included
constexpr int kMenuWidth = 34;
constexpr int kLeastCommand = 10;  // columns: below that others make way for it

struct ColumnLayout {
  Column column;
  int width;  // 0: the rest of the line
  bool right;
};

std::vector<ColumnLayout> columns_for(int width, bool gpus) {
  std::vector<ColumnLayout> out = {
      {Column::kPid, 7, true},    {Column::kUser, 9, false},   {Column::kPriority, 3, true},
      {Column::kNice, 3, true},   {Column::kVirtual, 5, true}, {Column::kResident, 5, true},
      {Column::kState, 1, false}, {Column::kCpu, 6, true},     {Column::kMemory, 5, true},
      {Column::kTime, 8, true},
  };
  if (width >= 110) {
    out.push_back({Column::kRead, 7, true});
    out.push_back({Column::kWrite, 8, true});
  }
  if (width >= 130) out.push_back({Column::kDisk, 7, false});
  if (gpus && width >= 90) out.push_back({Column::kGpuMemory, 6, true});
  int taken = 0;  // with the gap after each
  for (const ColumnLayout& c : out) taken += c.width + 1;
  for (const Column less : {Column::kVirtual, Column::kNice, Column::kPriority, Column::kMemory,
                            Column::kUser, Column::kTime, Column::kState, Column::kResident}) {
    if (taken + kLeastCommand <= width) break;
    std::erase_if(out, [&](const ColumnLayout& c) {
      if (c.column != less) return false;
      taken -= c.width + 1;
      return true;
    });
  }
  out.push_back({Column::kCommand, 0, false});
  return out;
}

std::string rate(float bytes_per_s) {
  return bytes_per_s < 0 ? "-" : short_bytes(static_cast<double>(bytes_per_s));
}

class Renderer {
 public:
  Renderer(Session& session, bool unicode)
      : session_(session),
        frame_{Canvas(session.width(), session.height(), unicode), {}},
        canvas_(frame_.canvas) {}

  Frame draw() {
    if (session_.help()) {
      draw_help();
      return std::move(frame_);
    }
    int y = draw_header();
    const int footer = height() - 1;
    const int pane = session_.tab() == Tab::kNone ? 0 : std::max(4, height() / 3);
    const int room = footer - y - kLeastTable - pane;
    if (room > 0) y = draw_panels(session_, frame_, y, room);
    const int table_end = std::max(y + 1, footer - pane);
    draw_table(y, table_end);
    if (pane > 0 && table_end < footer) draw_pane(table_end, footer);
    if (session_.menu().kind != Menu::Kind::kNone) draw_menu(y, table_end);
    if (height() > 1) draw_footer(footer);
    return std::move(frame_);
  }

 private:
  int width() const { return canvas_.width(); }
  int height() const { return canvas_.height(); }

  int draw_header() {
    const Snapshot* s = session_.snapshot();
    if (s == nullptr) {
      canvas_.put(0, 0, "flatout top", Style::kBold);
      return 1;
    }
    std::string right;
    if (session_.paused()) {
      right = fmt::format("PAUSED {:.0f} s ago", session_.behind_s());
    } else {
      const time_t seconds = static_cast<time_t>(s->unix_ns / 1'000'000'000);
      tm local{};
      ::localtime_r(&seconds, &local);
      right = fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
    }
    const auto minutes = static_cast<uint64_t>(s->uptime_s / 60);
    const std::string up = minutes >= 1440
                               ? fmt::format("{} d {} h", minutes / 1440, minutes / 60 % 24)
                               : fmt::format("{}:{:02}", minutes / 60, minutes % 60);
    const int end = width() - static_cast<int>(right.size()) - 1;
    int x = canvas_.put(0, 0, "flatout top", Style::kBold, end);
    const auto add = [&](const std::string& text, Style style = Style::kPlain) {
      if (x + 2 + static_cast<int>(text.size()) <= end) x = canvas_.put(x + 2, 0, text, style, end);
    };
    add(s->host);
    add(fmt::format("{} tasks {} threads", s->tasks, s->task_threads));
    add(fmt::format("load {:.2f} {:.2f} {:.2f}", s->load[0], s->load[1], s->load[2]));
    if (s->zombies > 0) add(fmt::format("zombies {}", s->zombies), Style::kWarning);
    add("up " + up);
    if (!s->gpu_trouble.empty()) add(s->gpu_trouble, Style::kDim);
    canvas_.put_right(width(), 0, right, session_.paused() ? Style::kWarning : Style::kDim);
    return 1;
  }

  // ---- the table ----

  void draw_table(int y, int end) {
    const Snapshot* s = session_.snapshot();
    session_.set_table_height(static_cast<size_t>(std::max(end - y - 1, 1)));
    if (y >= height()) return;
    const bool gpus = s != nullptr && !s->gpus.empty();
    const std::vector<ColumnLayout> columns = columns_for(width(), gpus);
    canvas_.fill(0, y, width(), U' ', Style::kHeading);
    int x = 0;
    for (const ColumnLayout& c : columns) {
      const int next = c.width == 0 ? width() : std::min(x + c.width, width());
      const bool sorted = session_.choice().sort == c.column;
      const Style style = sorted ? Style::kSorted : Style::kHeading;
      if (c.right) {
        canvas_.put_right(next, y, heading(c.column), style);
      } else {
        canvas_.put(x, y, heading(c.column), style, next);
      }
      frame_.zones.push_back({Zone::Kind::kHeading, x, y, next, static_cast<int>(c.column)});
      x = next + 1;
    }
    std::string state;
    if (!session_.choice().filter.empty()) state += " filter " + session_.choice().filter;
    if (session_.tags() > 0) state += fmt::format(" {} tagged", session_.tags());
    canvas_.put_right(width(), y, state, Style::kSorted);
    if (s == nullptr) return;
    const std::vector<Row>& rows = session_.rows();
    if (rows.empty() && session_.choice().root != 0) {
      canvas_.put(0, y + 1, fmt::format("process {} has ended", session_.choice().root),
                  Style::kDim);
    } else if (rows.empty()) {
      canvas_.put(0, y + 1, "no process fits", Style::kDim);
    }
    for (int line = y + 1; line < end; ++line) {
      const size_t at = session_.top() + static_cast<size_t>(line - y - 1);
      if (at >= rows.size()) break;
      draw_row(line, rows[at], columns, *s);
      frame_.zones.push_back({Zone::Kind::kRow, 0, line, width(), static_cast<int>(at)});
      if (at == session_.cursor()) {
        canvas_.restyle(line, session_.follows() ? Style::kFollowed : Style::kSelected);
      } else if (session_.tagged(*rows[at].task)) {
        canvas_.restyle(line, Style::kTagged);
      }
    }
  }

  std::string text_of(Column column, const Task& t, const Snapshot& s) {
    switch (column) {
      case Column::kPid:
        return std::to_string(t.tid);
      case Column::kUser:
        return session_.users().name(t.uid);
      case Column::kPriority:
        return t.priority <= -100 ? "RT" : std::to_string(t.priority);
      case Column::kNice:
        return std::to_string(t.nice);
      case Column::kVirtual:
        return short_bytes(static_cast<double>(t.virtual_bytes));
      case Column::kResident:
        return short_bytes(static_cast<double>(t.rss_bytes));
      case Column::kState:
        return std::string(1, t.state);
      case Column::kCpu: {
        const double percent = static_cast<double>(t.cores) * 100;
        return s.interval_s > 0 ? fmt::format("{:.{}f}", percent, percent >= 999.95 ? 0 : 1) : "-";
      }
      case Column::kMemory:
        return s.memory.total == 0 ? "-"
                                   : fmt::format("{:.1f}", 100 * static_cast<double>(t.rss_bytes) /
                                                               static_cast<double>(s.memory.total));
      case Column::kTime:
        return cpu_time(t.cpu_ticks, probe::tick_ns());
      case Column::kRead:
        return t.is_thread() ? "" : rate(t.read_bytes_per_s);
      case Column::kWrite:
        return t.is_thread() ? "" : rate(t.write_bytes_per_s);
      case Column::kDisk: {
        const Disk* disk = s.disk_of(t);
        return disk == nullptr ? "" : disk->name;
      }
      case Column::kGpuMemory:
        return t.gpu_bytes == 0 ? "" : short_bytes(static_cast<double>(t.gpu_bytes));
      case Column::kCommand:
      case Column::kCount:
        break;
    }
    return "";
  }

  void draw_row(int y, const Row& row, const std::vector<ColumnLayout>& columns,
                const Snapshot& s) {
    const Task& task = *row.task;
    const bool idle = task.cores < 0.0005F;
    int x = 0;
    for (const ColumnLayout& c : columns) {
      const int next = std::min(x + c.width, width());
      if (c.column == Column::kCommand) {
        draw_command(x, y, row);
        break;
      }
      const std::string text = text_of(c.column, task, s);
      Style style = Style::kPlain;
      if (c.column == Column::kCpu && idle) style = Style::kDim;
      if (c.column == Column::kState && task.state == 'R') style = Style::kGood;
      if (c.column == Column::kState && (task.state == 'D' || task.state == 'Z')) {
        style = Style::kWarning;
      }
      if (c.right) {
        canvas_.put_right(next, y, text, style);
      } else {
        canvas_.put(x, y, text, style, next);
      }
      x = next + 1;
    }
  }

  void draw_command(int x, int y, const Row& row) {
    const Task& task = *row.task;
    if (session_.choice().tree && row.depth > 0) {
      for (int depth = 1; depth < row.depth && x < width(); ++depth) {
        const bool goes_on = (row.lines >> depth & 1) != 0;
        x = canvas_.put_either(x, y, goes_on ? "│ " : "  ", goes_on ? "| " : "  ", Style::kDim);
      }
      x = canvas_.put_either(x, y, row.last ? "└─" : "├─", row.last ? "`-" : "|-", Style::kDim);
    }
    if (row.hidden > 0) x = canvas_.put(x, y, fmt::format("[+{}] ", row.hidden), Style::kDim);
    const std::string_view name = task.comm.data();
    if (task.is_thread()) {
      canvas_.put(x, y, name, Style::kGood);
      return;
    }
    if (task.kernel || task.command == nullptr || task.command->empty()) {
      canvas_.put(x, y, fmt::format("[{}]", name), Style::kDim);
      return;
    }
    // The program without its folder, unless the whole of it is wanted; then its arguments.
    std::string_view command = *task.command;
    const std::string_view program = command.substr(0, command.find(' '));
    const size_t slash = program.rfind('/');
    const size_t skip = session_.whole_command() || slash == std::string_view::npos ? 0 : slash + 1;
    const std::string safe = escape_terminal(command.substr(skip));
    std::string_view shown = safe;
    std::string_view first = shown.substr(0, shown.find(' '));
    for (int i = 0; i < session_.shift() && !shown.empty(); ++i) {
      take_character(shown);
      if (!first.empty()) take_character(first);
    }
    x = canvas_.put(x, y, first, Style::kName);
    canvas_.put(x, y, shown.substr(first.size()));
  }

  // ---- the pane about one process ----

  void draw_pane(int y, int end) {
    struct Name {
      Tab tab;
      const char* text;
    };
    static constexpr Name kNames[] = {{Tab::kFunctions, "Python"},
                                      {Tab::kNative, "Native"},
                                      {Tab::kFiles, "Files"},
                                      {Tab::kEnvironment, "Environment"},
                                      {Tab::kProcess, "Command"}};
    canvas_.fill(0, y, width(), U' ', Style::kHeading);
    int x = 0;
    for (const Name& n : kNames) {
      const bool open = session_.tab() == n.tab;
      x = canvas_.put(x, y, fmt::format(" {} ", n.text), open ? Style::kSorted : Style::kHeading);
    }
    const Snapshot* s = session_.snapshot();
    const Details* d = s == nullptr ? nullptr : s->details.get();
    if (d == nullptr) {
      canvas_.put(0, y + 1, "reading ...", Style::kDim);
      return;
    }
    canvas_.put_right(width(), y, fmt::format("pid {}  Tab PgUp PgDn Esc", d->pid),
                      Style::kHeading);
    lines_.clear();
    switch (session_.tab()) {
      case Tab::kFunctions:
        tell_functions(*d);
        break;
      case Tab::kNative:
        tell_native(*d);
        break;
      case Tab::kFiles:
        tell_files(*d);
        break;
      case Tab::kEnvironment:
        tell_environment(*d);
        break;
      case Tab::kProcess:
        tell_process(*d);
        break;
      case Tab::kNone:
        break;
    }
    for (int line = y + 1; line < end; ++line) {
      const size_t at = session_.tab_top() + static_cast<size_t>(line - y - 1);
      if (at >= lines_.size()) break;
      canvas_.put(0, line, lines_[at].first, lines_[at].second);
    }
  }

  void tell(std::string text, Style style = Style::kPlain) {
    lines_.emplace_back(std::move(text), style);
  }

  void tell_functions(const Details& d) {
    const PythonProfile& p = d.python;
    if (!p.trouble.empty()) {
      tell(p.trouble, Style::kDim);
      tell("b shows the functions of its native code", Style::kDim);
      return;
    }
    tell(fmt::format("Python {}  GIL held {:.0f}% of the time  {} readings", p.version,
                     p.gil_share * 100, p.readings),
         Style::kDim);
    tell(fmt::format("{:>6} {:>6} {:>6} {:>6} {:>9} {:>9}  {}", "OWN%", "WAIT%", "TOTAL%", "GIL%",
                     "OWN s", "TOTAL s", "FUNCTION"),
         Style::kBold);
    for (const Function& f : p.functions) {
      tell(fmt::format("{:6.1f} {:6.1f} {:6.1f} {:6.1f} {:9.2f} {:9.2f}  {} ({}:{})",
                       f.own_share * 100, f.waiting_share * 100, f.total_share * 100,
                       f.gil_share * 100, f.own_s, f.total_s, f.function, f.file, f.line));
    }
  }

  void tell_native(const Details& d) {
    const NativeProfile& p = d.native;
    if (!p.trouble.empty()) tell(p.trouble, Style::kWarning);
    if (p.readings == 0) {
      tell("reading ...", Style::kDim);
      return;
    }
    tell(fmt::format("{} of {} threads, those that use most CPU  {} readings", p.watched, p.threads,
                     p.readings),
         Style::kDim);
    tell(fmt::format("{:>6} {:>6} {:>6} {:>9} {:>9}  {}", "OWN%", "WAIT%", "TOTAL%", "OWN s",
                     "TOTAL s", "FUNCTION"),
         Style::kBold);
    for (const Function& f : p.functions) {
      tell(fmt::format("{:6.1f} {:6.1f} {:6.1f} {:9.2f} {:9.2f}  {} ({})", f.own_share * 100,
                       f.waiting_share * 100, f.total_share * 100, f.own_s, f.total_s, f.function,
                       f.file));
    }
  }

  void tell_files(const Details& d) {
    if (!d.files_trouble.empty()) {
      tell(d.files_trouble, Style::kDim);
      return;
    }
    tell(fmt::format("{:>5} {:>7} {:>8} {:>7} {:>7}  {}", "FD", "READ/s", "WRITE/s", "AT", "SIZE",
                     "FILE"),
         Style::kBold);
    const auto amount = [](const auto& value) {
      return value ? short_bytes(static_cast<double>(*value)) : std::string("-");
    };
    for (const OpenFile& f : d.files) {
      // Of a file that is open for both, nothing tells by which of them its position moved on.
      const bool both = f.reads && f.writes && f.bytes_per_s.value_or(0) > 0;
      const std::string moved = (both ? "<=" : "") + amount(f.bytes_per_s);
      tell(fmt::format("{:>5} {:>7} {:>8} {:>7} {:>7}  {}", f.fd, f.reads ? moved : "-",
                       f.writes ? moved : "-", amount(f.position), amount(f.bytes), f.path));
    }
  }

  void tell_environment(const Details& d) {
    if (!d.environment_trouble.empty()) tell(d.environment_trouble, Style::kDim);
    if (d.environment.empty()) tell("nothing that bears on training", Style::kDim);
    for (const auto& [name, value] : d.environment) tell(fmt::format("{}={}", name, value));
  }

  void tell_process(const Details& d) {
    std::string command;
    for (const std::string& word : d.command) command += (command.empty() ? "" : " ") + word;
    // Over as many lines as it takes.
    const std::string safe = escape_terminal(command);
    for (std::string_view rest = safe; !rest.empty();) {
      std::string_view tail = rest;
      int used = 0;
      do {  // at least one: a screen may be a single column wide
        used += static_cast<int>(character_width(take_character(tail)));
      } while (!tail.empty() && used + 2 <= width());
      tell(std::string(rest.substr(0, rest.size() - tail.size())), Style::kName);
      rest = tail;
    }
    tell("allowed cores " + d.allowed_cores);
    if (!d.autogroup.empty()) tell("autogroup " + d.autogroup);
    tell(fmt::format("{:<26}{:>21}{:>21}  {}", "LIMIT", "SOFT", "HARD", "UNIT"), Style::kBold);
    for (const Details::Limit& limit : d.limits) {
      tell(fmt::format("{:<26}{:>21}{:>21}  {}", limit.name, limit.soft, limit.hard, limit.unit));
    }
  }

  // ---- menus, prompts, help ----

  void draw_menu(int y, int end) {
    const Menu& menu = session_.menu();
    const int right = std::min(kMenuWidth, width());
    const int room = std::max(end - y - 1, 1);
    canvas_.fill(0, y, right, U' ', Style::kHeading);
    canvas_.put(0, y, menu.title + ":", Style::kHeading, right);
    const auto chosen = static_cast<int>(menu.chosen);
    const int top = std::max(0, chosen - room + 1);
    for (int i = 0; i < room; ++i) {
      const int at = top + i;
      const Style style = at == chosen ? Style::kSelected : Style::kPlain;
      canvas_.fill(0, y + 1 + i, right, U' ', style);
      if (at < static_cast<int>(menu.items.size())) {
        canvas_.put(1, y + 1 + i, menu.items[static_cast<size_t>(at)], style, right);
      }
      canvas_.put_either(right - 1, y + 1 + i, "│", "|", Style::kDim);
    }
  }

  void draw_footer(int y) {
    const std::string question = session_.question();
    if (!question.empty()) {
      canvas_.fill(0, y, width(), U' ', Style::kWarning);
      canvas_.put(0, y, question, Style::kWarning);
      return;
    }
    if (session_.input() != Input::kNone) {
      const char* prompt = session_.input() == Input::kSearch   ? "Search: "
                           : session_.input() == Input::kFilter ? "Filter: "
                                                                : "Cores (0-3,7): ";
      const int x = canvas_.put(0, y, prompt, Style::kKeyText);
      const int after = canvas_.put(x, y, session_.typed(), Style::kPlain);
      canvas_.put(after, y, "_", Style::kBold);
      if (!session_.message().empty()) {
        canvas_.put_right(width(), y, session_.message(), Style::kMessage);
      }
      return;
    }
    if (!session_.message().empty()) {
      canvas_.put(0, y, session_.message(), Style::kMessage);
      return;
    }
    static constexpr const char* kKeys[] = {"Help", "Panels", "Search", "Filter", "Tree",
                                            "Sort", "Nice-",  "Nice+",  "Signal", "Quit"};
    int x = 0;
    for (int i = 0; i < 10; ++i) {
      const int from = x;
      x = canvas_.put(x, y, fmt::format("F{}", i + 1), Style::kKey);
      x = canvas_.put(x, y, fmt::format("{:<6}", kKeys[i]), Style::kKeyText);
      frame_.zones.push_back({Zone::Kind::kFunctionKey, from, y, x, i + 1});
    }
  }

  void draw_help() {
    std::string_view rest = help_text();
    std::vector<std::string_view> lines;
    std::string_view line;
    while (next_line(rest, line)) lines.push_back(line);
    const auto fits = static_cast<size_t>(height());
    const size_t most = lines.size() > fits ? lines.size() - fits : 0;
    const size_t top = std::min(session_.help_top(), most);
    for (size_t i = 0; i < fits && top + i < lines.size(); ++i) {
      const std::string_view text = lines[top + i];
      // Keys stand in the first columns of an indented line.
      const bool indented = text.starts_with("  ");
      canvas_.put(0, static_cast<int>(i), text.substr(0, indented ? 18 : text.size()),
                  Style::kBold);
      if (indented && text.size() > 18) canvas_.put(18, static_cast<int>(i), text.substr(18));
    }
  }

  Session& session_;
  Frame frame_;
  Canvas& canvas_;
  std::vector<std::pair<std::string, Style>> lines_;  // of the pane
};

}  // namespace

Frame render(Session& session, bool unicode) { return Renderer(session, unicode).draw(); }

}  // namespace flatout::screen

#include "screen/session.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/display_width.h"
#include "base/text.h"
#include "probe/proc_files.h"
#include "screen/canvas.h"

namespace flatout::screen {
namespace {

struct Choice {
  int value;
  const char* text;
};

constexpr Choice kSignals[] = {
    {SIGTERM, "15 SIGTERM  end, please"},
    {SIGINT, " 2 SIGINT   as Ctrl-C"},
    {SIGKILL, " 9 SIGKILL  end at once"},
    {SIGHUP, " 1 SIGHUP"},
    {SIGQUIT, " 3 SIGQUIT"},
    {SIGABRT, " 6 SIGABRT"},
    {SIGUSR1, "10 SIGUSR1"},
    {SIGUSR2, "12 SIGUSR2"},
    {SIGCONT, "18 SIGCONT  go on"},
    {SIGSTOP, "19 SIGSTOP  stop"},
    {SIGTSTP, "20 SIGTSTP  as Ctrl-Z"},
};

// ioprio_set(2): the class in bits 13 to 15, the level below.
constexpr int io_priority(int io_class, int level) { return (io_class << 13) | level; }
constexpr Choice kIoPriorities[] = {
    {io_priority(0, 0), "by the nice value"},
    {io_priority(2, 0), "best effort 0 (first)"},
    {io_priority(2, 2), "best effort 2"},
    {io_priority(2, 4), "best effort 4 (usual)"},
    {io_priority(2, 6), "best effort 6"},
    {io_priority(2, 7), "best effort 7 (last)"},
    {io_priority(3, 0), "idle: when nobody else reads"},
    {io_priority(1, 4), "realtime 4 (needs root)"},
};

// sched(7): an autogroup is a session's; its nice value weighs it against the others.
constexpr Choice kAutogroups[] = {
    {-10, "-10 ten times as much (root)"},
    {-5, " -5 three times as much (root)"},
    {0, "  0 as much as any other"},
    {5, "  5 a third"},
    {10, " 10 a tenth"},
    {19, " 19 only what others leave"},
};

std::string name_of(int value, const Choice* begin, const Choice* end) {
  const Choice* found = std::find_if(begin, end, [&](const Choice& c) { return c.value == value; });
  return found == end ? std::to_string(value) : std::string(trim(found->text));
}

Menu menu_of(Menu::Kind kind, std::string title, std::span<const Choice> choices) {
  Menu out{kind, std::move(title), {}, {}, 0};
  for (const Choice& c : choices) {
    out.items.emplace_back(c.text);
    out.values.push_back(c.value);
  }
  return out;
}

std::string signal_name(int number) {
  std::string_view text;
  const std::string whole = name_of(number, std::begin(kSignals), std::end(kSignals));
  text = whole;
  next_word(text);
  return std::string(next_word(text));
}

}  // namespace

std::string_view name(Panel panel) {
  static constexpr std::array<std::string_view, static_cast<size_t>(Panel::kCount)> kNames = {
      "Cores", "Memory", "Disks", "GPUs", "Jobs"};
  return kNames[static_cast<size_t>(panel)];
}

Session::Session(fs::Root root, int32_t only_pid, double delay_s)
    : users_(std::move(root)), delay_s_(delay_s) {
  choice_.root = only_pid;
  choice_.tree = only_pid != 0;
}

void Session::add(std::shared_ptr<const Snapshot> snapshot) {
  history_.add(snapshot);
  if (paused_) return;
  shown_ = std::move(snapshot);
  forget_ended();
  refresh();
}

void Session::resize(int width, int height) {
  width_ = std::max(width, 1);
  height_ = std::max(height, 1);
}

void Session::set_table_height(size_t rows) {
  table_height_ = std::max<size_t>(rows, 1);
  keep_cursor_visible();
}

Wanted Session::wanted() const {
  Wanted out;
  out.threads = threads_;
  const Task* task = chosen();
  if (tab_ != Tab::kNone && task != nullptr) out.details_pid = task->pid;
  out.native = tab_ == Tab::kNative;
  if (task != nullptr) out.group_pid = task->pid;
  return out;
}

double Session::behind_s() const {
  if (!shown_ || history_.size() == 0) return 0;
  return to_s(history_.back(0)->at - shown_->at);
}

const Task* Session::chosen() const {
  return cursor_ < rows_.size() ? rows_[cursor_].task : nullptr;
}

bool Session::is_chosen(const Task& task) const {
  return task.tid == chosen_tid_ && task.start_ticks == chosen_start_;
}

// What is not there any more is not meant any more, nor who has got its number since.
void Session::forget_ended() {
  std::map<int32_t, uint64_t> left;
  if (!tagged_.empty()) {
    for (const Task& task : shown_->task_list) {
      if (tagged(task)) left.emplace(task.tid, task.start_ticks);
    }
  }
  tagged_ = std::move(left);
}

void Session::refresh() {
  if (!shown_) return;
  rows_ = choose_rows(*shown_, choice_, users_);
  // Following, or with a pane about it, the cursor goes with its process; else it stays where it is
  // on the screen.
  if (follow_ || tab_ != Tab::kNone) {
    const auto found =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return is_chosen(*r.task); });
    if (found == rows_.end()) {
      if (chosen_tid_ != 0) say(fmt::format("{} is not shown any more", chosen_tid_));
      follow_ = false;
      tab_ = Tab::kNone;
    } else {
      cursor_ = static_cast<size_t>(found - rows_.begin());
    }
  }
  if (cursor_ >= rows_.size()) cursor_ = rows_.empty() ? 0 : rows_.size() - 1;
  if (const Task* task = chosen()) {
    chosen_tid_ = task->tid;
    chosen_start_ = task->start_ticks;
  }
  keep_cursor_visible();
}

void Session::keep_cursor_visible() {
  if (cursor_ < top_) top_ = cursor_;
  if (cursor_ >= top_ + table_height_) top_ = cursor_ + 1 - table_height_;
  const size_t most = rows_.size() > table_height_ ? rows_.size() - table_height_ : 0;
  top_ = std::min(top_, most);
}

void Session::move(int64_t by) {
  const int64_t last = rows_.empty() ? 0 : static_cast<int64_t>(rows_.size()) - 1;
  cursor_ = static_cast<size_t>(std::clamp<int64_t>(static_cast<int64_t>(cursor_) + by, 0, last));
  if (const Task* task = chosen()) {
    if (!is_chosen(*task)) tab_top_ = 0;
    chosen_tid_ = task->tid;
    chosen_start_ = task->start_ticks;
  }
  keep_cursor_visible();
}

void Session::scroll(int rows) {
  if (help_) {
    help_top_ = static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(help_top_) + rows));
  } else {
    move(rows);
  }
}

void Session::click_row(size_t row) {
  move(static_cast<int64_t>(row) - static_cast<int64_t>(cursor_));
}
void Session::click_heading(Column column) { sort_by(column); }

void Session::fold(Panel panel) {
  if (!folded_.erase(panel)) folded_.insert(panel);
}

void Session::sort_by(Column column) {
  choice_.reversed = choice_.sort == column && !choice_.reversed;
  choice_.sort = column;
  refresh();
}

void Session::open_tab(Tab tab) {
  tab_ = tab_ == tab ? Tab::kNone : tab;
  tab_top_ = 0;
}

void Session::to_time(int64_t steps, Nanos by) {
  const auto& all = history_.all();
  if (all.empty() || !shown_) return;
  const auto at = std::lower_bound(all.begin(), all.end(), shown_->at + by,
                                   [](const auto& s, TimePoint t) { return s->at < t; });
  const int64_t last = static_cast<int64_t>(all.size()) - 1;
  const int64_t to = std::clamp<int64_t>((at - all.begin()) + steps, 0, last);
  paused_ = steps < 0 || by < Nanos{} || to < last;
  shown_ = all[static_cast<size_t>(to)];
  refresh();
}

std::vector<Command::Target> Session::targets() const {
  std::vector<Command::Target> out;
  if (!shown_) return out;
  const auto add = [&](const Task& t) {
    out.push_back({t.pid, t.tid, t.start_ticks, std::string(t.comm.data())});
  };
  if (tagged_.empty()) {
    if (const Task* task = chosen()) add(*task);
    return out;
  }
  for (const Task& task : shown_->task_list) {
    if (tagged(task)) add(task);
  }
  return out;
}

bool Session::search(bool forward, bool from_next) {
  if (searched_.empty() || rows_.empty()) return false;
  const size_t count = rows_.size();
  for (size_t step = from_next ? 1 : 0; step <= count; ++step) {
    const size_t at = (forward ? cursor_ + step : cursor_ + count * 2 - step) % count;
    if (!mentions(*rows_[at].task, searched_)) continue;
    click_row(at);
    return true;
  }
  return false;
}

std::string Session::question() const {
  if (pending_.kind == Command::Kind::kNone) return "";
  std::string whom;
  for (size_t i = 0; i < pending_.targets.size() && i < 3; ++i) {
    whom += fmt::format("{}{} {}", i == 0 ? "" : ", ", pending_.targets[i].tid,
                        pending_.targets[i].name);
  }
  if (pending_.targets.size() > 3) whom += fmt::format(" and {} more", pending_.targets.size() - 3);
  switch (pending_.kind) {
    case Command::Kind::kSignal:
      return fmt::format("Send {} to {}? y/n", signal_name(pending_.value), whom);
    case Command::Kind::kNice:
      return fmt::format("Set the nice value to {} for {}? y/n (F7 -, F8 +)", pending_.value, whom);
    case Command::Kind::kIoPriority:
      return fmt::format(
          "Set the I/O priority \"{}\" for {}? y/n",
          name_of(pending_.value, std::begin(kIoPriorities), std::end(kIoPriorities)), whom);
    case Command::Kind::kCores:
      return pending_.cores.size() == 1
                 ? fmt::format("Allow only core {} to {}? y/n", pending_.cores[0], whom)
                 : fmt::format("Allow only {} cores to {}? y/n", pending_.cores.size(), whom);
    case Command::Kind::kAutogroup:
      return fmt::format("Set nice {} for the whole session of {}? y/n", pending_.value, whom);
    default:
      return "";
  }
}

Command Session::key(Key key) {
  message_.clear();
  if (help_) {
    if (key == key::kUp || key == key::kDown) {
      scroll(key == key::kUp ? -1 : 1);
    } else if (key == key::kPageUp || key == key::kPageDown) {
      scroll(key == key::kPageUp ? -10 : 10);
    } else {
      help_ = false;
    }
    return {};
  }
  if (pending_.kind != Command::Kind::kNone) return confirm_key(key);
  if (menu_.kind != Menu::Kind::kNone) return menu_key(key);
  if (input_ != Input::kNone) {
    input_key(key);
    return {};
  }
  return table_key(key);
}

Command Session::table_key(Key key) {
  if (key == 'q' || key == key::f(10)) return {.kind = Command::Kind::kQuit};
  if (key == 'S') return {.kind = Command::Kind::kSave};
  if (digit_key(key)) return {};
  digits_.clear();
  if (!move_key(key) && !view_key(key) && !tree_key(key) && !tag_key(key) && !time_key(key)) {
    menu_opens(key);
  }
  return {};
}

// The process whose number begins with the digits typed so far. The cursor stays on it: a key that
// comes after the next reading means it, wherever it is on the screen by then.
bool Session::digit_key(Key key) {
  if (key < '0' || key > '9') return false;
  digits_ += static_cast<char>(key);
  for (const bool whole : {true, false}) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::string number = std::to_string(rows_[i].task->tid);
      if (whole ? number != digits_ : !number.starts_with(digits_)) continue;
      click_row(i);
      follow_ = true;
      return true;
    }
  }
  digits_.clear();
  return true;
}

bool Session::move_key(Key key) {
  const auto page = static_cast<int64_t>(table_height_);
  const auto all = static_cast<int64_t>(rows_.size());
  const bool moves_pane = tab_ != Tab::kNone && (key == key::kPageUp || key == key::kPageDown);
  if (moves_pane) {
    const int64_t by = key == key::kPageUp ? -5 : 5;
    tab_top_ = static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(tab_top_) + by));
    return true;
  }
  switch (key) {
    case key::kUp:
      move(-1);
      break;
    case key::kDown:
      move(1);
      break;
    case key::kPageUp:
      move(-page);
      break;
    case key::kPageDown:
      move(page);
      break;
    case key::kHome:
      move(-all);
      break;
    case key::kEnd:
      move(all);
      break;
    case key::kLeft:
      shift_ = std::max(0, shift_ - 8);
      break;
    case key::kRight:
      shift_ = std::min(shift_ + 8, 4096);
      break;
    default:
      return false;
  }
  // As in htop: who moves by hand does not follow any more.
  if (key != key::kLeft && key != key::kRight) follow_ = false;
  return true;
}

bool Session::view_key(Key key) {
  switch (key) {
    case 'H':
      threads_ = !threads_;
      say(threads_ ? "threads are shown" : "threads are hidden");
      break;
    case 'K':
      choice_.kernel = !choice_.kernel;
      refresh();
      break;
    case 'P':
      sort_by(Column::kCpu);
      break;
    case 'M':
      sort_by(Column::kMemory);
      break;
    case 'T':
      sort_by(Column::kTime);
      break;
    case 'N':
      sort_by(Column::kPid);
      break;
    case 'I':
      choice_.reversed = !choice_.reversed;
      refresh();
      break;
    case 'p':
      whole_command_ = !whole_command_;
      break;
    case 'F':
      follow_ = !follow_;
      break;
    case key::kEnter:
      open_tab(tab_ == Tab::kNone ? Tab::kFunctions : tab_);
      break;
    case 'b':
      open_tab(Tab::kNative);
      break;
    case 'l':
      open_tab(Tab::kFiles);
      break;
    case 'e':
      open_tab(Tab::kEnvironment);
      break;
    case key::kTab:
      if (tab_ == Tab::kNone) return false;
      tab_ = tab_ == Tab::kProcess ? Tab::kFunctions : static_cast<Tab>(static_cast<int>(tab_) + 1);
      tab_top_ = 0;
      break;
    case key::kEscape:
      tab_ = Tab::kNone;
      break;
    case 'n':
      search(true, true);
      break;
    default:
      return false;
  }
  return true;
}

bool Session::tree_key(Key key) {
  if (key == 't' || key == key::f(5)) {
    choice_.tree = !choice_.tree;
    refresh();
    return true;
  }
  const Task* task = chosen();
  if (task == nullptr || (key != '+' && key != '-' && key != '*')) return false;
  if (key == '*') {
    if (choice_.collapsed.empty()) {
      for (const Row& row : rows_) choice_.collapsed.insert(row.task->pid);
    } else {
      choice_.collapsed.clear();
    }
  } else if (!choice_.collapsed.erase(task->pid)) {
    choice_.collapsed.insert(task->pid);
  }
  refresh();
  return true;
}

bool Session::tag_key(Key key) {
  const Task* task = chosen();
  if (key == 'U') {
    tagged_.clear();
    return true;
  }
  if (task == nullptr || (key != ' ' && key != 'c')) return false;
  if (key == ' ') {
    if (tagged(*task)) {
      tagged_.erase(task->tid);
    } else {
      tagged_[task->tid] = task->start_ticks;
    }
    move(1);
    return true;
  }
  // With all that descends from it: parents stand before their children only by chance of pids.
  std::set<int32_t> family{task->pid};
  for (size_t before = 0; before != family.size();) {
    before = family.size();
    for (const Task& other : shown_->task_list) {
      if (!other.is_thread() && family.contains(other.ppid)) family.insert(other.pid);
    }
  }
  for (const Task& member : shown_->task_list) {
    if (!member.is_thread() && family.contains(member.pid)) {
      tagged_[member.tid] = member.start_ticks;
    }
  }
  return true;
}

bool Session::time_key(Key key) {
  switch (key) {
    case 'Z':
      paused_ = !paused_;
      if (!paused_ && history_.size() > 0) {
        shown_ = history_.back(0);
        refresh();
      }
      return true;
    case '{':
    case key::kShiftLeft:
      to_time(-1);
      return true;
    case '}':
    case key::kShiftRight:
      to_time(1);
      return true;
    case '(':
      to_time(0, -std::chrono::minutes(1));
      return true;
    case ')':
      to_time(0, std::chrono::minutes(1));
      return true;
    default:
      return false;
  }
}

bool Session::menu_opens(Key key) {
  switch (key) {
    case 'h':
    case '?':
    case key::f(1):
      help_ = true;
      help_top_ = 0;
      return true;
    case key::f(2):
      open_panels();
      return true;
    case '/':
    case key::f(3):
      if (key == key::f(3) && search(true, true)) return true;
      input_ = Input::kSearch;
      typed_.clear();
      return true;
    case '\\':
    case key::f(4):
      input_ = Input::kFilter;
      typed_ = choice_.filter;
      return true;
    case '>':
    case '.':
    case key::f(6):
      open_sorts();
      return true;
    case 'u':
      open_users();
      return true;
    case ']':
    case key::f(7):
      ask_nice(-1);
      return true;
    case '[':
    case key::f(8):
      ask_nice(1);
      return true;
    case 'k':
    case key::f(9):
      if (chosen() != nullptr) open_signals();
      return true;
    case 'i':
      if (chosen() != nullptr) open_io_priorities();
      return true;
    case 'g':
      if (chosen() != nullptr) open_autogroups();
      return true;
    case 'a':
      if (chosen() == nullptr) return true;
      targets_ = targets();
      input_ = Input::kCores;
      typed_.clear();
      return true;
    default:
      return false;
  }
}

void Session::open_signals() {
  targets_ = targets();
  menu_ = menu_of(Menu::Kind::kSignal, "Send signal", kSignals);
}

void Session::open_io_priorities() {
  targets_ = targets();
  menu_ = menu_of(Menu::Kind::kIoPriority, "I/O priority", kIoPriorities);
}

void Session::open_autogroups() {
  targets_ = targets();
  menu_ = menu_of(Menu::Kind::kAutogroup, "Share of the session", kAutogroups);
}

void Session::open_sorts() {
  menu_ = {Menu::Kind::kSort, "Sort by", {}, {}, static_cast<size_t>(choice_.sort)};
  for (int i = 0; i < static_cast<int>(Column::kCount); ++i) {
    menu_.items.emplace_back(heading(static_cast<Column>(i)));
    menu_.values.push_back(i);
  }
}

void Session::open_panels() {
  const size_t chosen_before = menu_.kind == Menu::Kind::kPanels ? menu_.chosen : 0;
  menu_ = {Menu::Kind::kPanels, "Show panels", {}, {}, chosen_before};
  for (int i = 0; i < static_cast<int>(Panel::kCount); ++i) {
    const auto panel = static_cast<Panel>(i);
    menu_.items.push_back(fmt::format("[{}] {}", folded(panel) ? ' ' : 'x', name(panel)));
    menu_.values.push_back(i);
  }
}

void Session::open_users() {
  menu_ = {Menu::Kind::kUser, "Show user", {"all"}, {0}, 0};
  std::set<uint32_t> uids;
  if (shown_) {
    for (const Task& task : shown_->task_list) uids.insert(task.uid);
  }
  for (const uint32_t uid : uids) {
    menu_.items.push_back(users_.name(uid));
    menu_.values.push_back(static_cast<int>(uid));
  }
}

void Session::ask_nice(int by) {
  const Task* task = chosen();
  if (task == nullptr) return;
  pending_ = {Command::Kind::kNice, std::clamp(task->nice + by, -20, 19), {}, targets()};
}

Command Session::menu_key(Key key) {
  switch (key) {
    case key::kUp:
      if (menu_.chosen > 0) --menu_.chosen;
      return {};
    case key::kDown:
      if (menu_.chosen + 1 < menu_.items.size()) ++menu_.chosen;
      return {};
    case key::kHome:
      menu_.chosen = 0;
      return {};
    case key::kEnd:
      menu_.chosen = menu_.items.size() - 1;
      return {};
    case ' ':
    case key::kEnter:
      return menu_done();
    case key::kEscape:
    case 'q':
    case key::f(10):
      menu_ = {};
      digits_.clear();
      return {};
    default:
      // By its number, as signals are known by: 9.
      if (menu_.kind == Menu::Kind::kSignal && key >= '0' && key <= '9') {
        digits_ += static_cast<char>(key);
        for (int round = 0; round < 2; ++round) {
          const auto found = std::find(menu_.values.begin(), menu_.values.end(),
                                       parse_number<int>(digits_).value_or(0));
          if (found != menu_.values.end()) {
            menu_.chosen = static_cast<size_t>(found - menu_.values.begin());
            return {};
          }
          if (round == 0 && digits_.size() > 1) digits_ = static_cast<char>(key);
        }
      }
      return {};
  }
}

Command Session::menu_done() {
  if (menu_.chosen >= menu_.values.size()) return {};
  const int value = menu_.values[menu_.chosen];
  const Menu::Kind kind = menu_.kind;
  const bool first = menu_.chosen == 0;
  if (kind == Menu::Kind::kPanels) {
    fold(static_cast<Panel>(value));
    open_panels();  // stays open: several may be chosen
    return {};
  }
  menu_ = {};
  digits_.clear();
  switch (kind) {
    case Menu::Kind::kSignal:
      pending_ = {Command::Kind::kSignal, value, {}, targets_};
      break;
    case Menu::Kind::kIoPriority:
      pending_ = {Command::Kind::kIoPriority, value, {}, targets_};
      break;
    case Menu::Kind::kAutogroup:
      pending_ = {Command::Kind::kAutogroup, value, {}, targets_};
      break;
    case Menu::Kind::kSort:
      choice_.reversed = false;
      choice_.sort = static_cast<Column>(value);
      refresh();
      break;
    case Menu::Kind::kUser:
      choice_.user = first ? std::nullopt : std::optional<uint32_t>(static_cast<uint32_t>(value));
      refresh();
      break;
    default:
      break;
  }
  return {};
}

Command Session::confirm_key(Key key) {
  if (pending_.kind == Command::Kind::kNice) {
    const int by = key == key::f(7) || key == ']' ? -1 : key == key::f(8) || key == '[' ? 1 : 0;
    if (by != 0) {
      pending_.value = std::clamp(pending_.value + by, -20, 19);
      return {};
    }
  }
  Command out = std::exchange(pending_, {});
  if (key == 'y' || key == 'Y') return out;
  say("nothing was done");
  return {};
}

void Session::input_key(Key key) {
  if (key == key::kEscape) {
    if (input_ == Input::kFilter) {
      choice_.filter.clear();
      refresh();
    }
    input_ = Input::kNone;
    return;
  }
  if (key == key::kEnter) {
    input_done();
    return;
  }
  if (key == key::kBackspace) {
    while (!typed_.empty() && (static_cast<unsigned char>(typed_.back()) & 0xC0) == 0x80) {
      typed_.pop_back();
    }
    if (!typed_.empty()) typed_.pop_back();
  } else if (key >= 0x20 && key != 0x7F && key < 0x10000 && typed_.size() < 256) {
    append_utf8(typed_, key);
  } else if (key == key::f(3) && input_ == Input::kSearch) {
    search(true, true);
    return;
  } else {
    return;
  }
  if (input_ == Input::kFilter) {
    choice_.filter = typed_;
    refresh();
  } else if (input_ == Input::kSearch) {
    searched_ = typed_;
    if (!search(true, false) && !typed_.empty()) say("nobody is called that");
  }
}

void Session::input_done() {
  const Input input = std::exchange(input_, Input::kNone);
  if (input != Input::kCores) return;
  auto cores = probe::parse_cpu_list(typed_);
  if (!cores || cores->empty()) {
    say(fmt::format("'{}' is no list of cores: 0-3,7", typed_));
    return;
  }
  pending_ = {Command::Kind::kCores, 0, std::move(*cores), targets_};
}

}  // namespace flatout::screen

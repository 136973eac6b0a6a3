// What the user sees and does: the state of the view, changed by keys and by new snapshots. Knows
// no terminal and touches no process: what is to be done to one comes out as a Command.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "screen/history.h"
#include "screen/rows.h"
#include "screen/sampler.h"
#include "screen/snapshot.h"

namespace flatout::screen {

/// A key: a character, or one of these, beyond all characters.
using Key = char32_t;
namespace key {
inline constexpr Key kUp = 0x110000, kDown = 0x110001, kLeft = 0x110002, kRight = 0x110003,
                     kPageUp = 0x110004, kPageDown = 0x110005, kHome = 0x110006, kEnd = 0x110007,
                     kEnter = 0x110008, kEscape = 0x110009, kBackspace = 0x11000A, kTab = 0x11000B,
                     kShiftLeft = 0x11000C, kShiftRight = 0x11000D, kF1 = 0x110011;
constexpr Key f(int n) { return kF1 + static_cast<Key>(n - 1); }  // F1 to F12
}  // namespace key

enum class Panel : uint8_t { kCores, kMemory, kDisks, kGpus, kJobs, kCount };
std::string_view name(Panel panel);

/// The pane below the table, about the process with the cursor.
enum class Tab : uint8_t { kNone, kFunctions, kNative, kFiles, kEnvironment, kProcess };

/// Something to do to processes, or to the screen itself.
struct Command {
  enum class Kind : uint8_t {
    kNone,
    kQuit,
    kSignal,
    kNice,
    kIoPriority,
    kCores,
    kAutogroup,
    kSave
  };
  struct Target {
    int32_t pid = 0, tid = 0;  // of a process tid == pid
    uint64_t start_ticks = 0;  // of tid: it may be another's by now
    std::string name;
  };
  Kind kind = Kind::kNone;
  int value = 0;  // signal; nice value, of an autogroup too; I/O priority as ioprio_set(2) takes it
  std::vector<int32_t> cores;
  std::vector<Target> targets;
};

/// A list to choose from.
struct Menu {
  enum class Kind : uint8_t { kNone, kSignal, kSort, kPanels, kIoPriority, kAutogroup, kUser };
  Kind kind = Kind::kNone;
  std::string title;
  std::vector<std::string> items;
  std::vector<int> values;
  size_t chosen = 0;
};

/// A line of text that is being typed.
enum class Input : uint8_t { kNone, kSearch, kFilter, kCores };

class Session {
 public:
  Session(fs::Root root, int32_t only_pid, double delay_s);

  void add(std::shared_ptr<const Snapshot> snapshot);
  void resize(int width, int height);
  /// A key; what it asks for beyond the view.
  Command key(Key key);
  /// What the screen shall say until the next key.
  void say(std::string message) { message_ = std::move(message); }
  /// What the next snapshot shall have.
  Wanted wanted() const;

  // Clicks: rows and zones as render() placed them.
  void click_row(size_t row);
  void click_heading(Column column);
  void fold(Panel panel);
  void scroll(int rows);

  // For render().
  const Snapshot* snapshot() const { return shown_.get(); }
  const History& history() const { return history_; }
  const std::vector<Row>& rows() const { return rows_; }
  const RowChoice& choice() const { return choice_; }
  UserNames& users() { return users_; }
  int width() const { return width_; }
  int height() const { return height_; }
  bool folded(Panel panel) const { return folded_.contains(panel); }
  bool tagged(const Task& task) const {
    const auto tag = tagged_.find(task.tid);
    return tag != tagged_.end() && tag->second == task.start_ticks;
  }
  size_t tags() const { return tagged_.size(); }
  size_t cursor() const { return cursor_; }
  size_t top() const { return top_; }
  int shift() const { return shift_; }
  bool follows() const { return follow_; }
  bool threads() const { return threads_; }
  bool whole_command() const { return whole_command_; }
  bool paused() const { return paused_; }
  /// How far in the past the shown snapshot lies.
  double behind_s() const;
  Tab tab() const { return tab_; }
  size_t tab_top() const { return tab_top_; }
  const Menu& menu() const { return menu_; }
  Input input() const { return input_; }
  const std::string& typed() const { return typed_; }
  const std::string& message() const { return message_; }
  bool help() const { return help_; }
  size_t help_top() const { return help_top_; }
  double delay_s() const { return delay_s_; }
  /// What is to be confirmed; empty if nothing is.
  std::string question() const;
  /// render() tells how many rows of the table fit.
  void set_table_height(size_t rows);

 private:
  void refresh();
  void forget_ended();
  void keep_cursor_visible();
  void move(int64_t by);
  /// So many snapshots, or so much time, on from the shown one.
  void to_time(int64_t steps, Nanos by = {});
  const Task* chosen() const;
  bool is_chosen(const Task& task) const;
  std::vector<Command::Target> targets() const;
  void sort_by(Column column);
  void open_tab(Tab tab);
  bool search(bool forward, bool from_next);

  Command table_key(Key key);
  bool move_key(Key key);
  bool view_key(Key key);
  bool tree_key(Key key);
  bool tag_key(Key key);
  bool time_key(Key key);
  bool menu_opens(Key key);
  bool digit_key(Key key);
  void input_key(Key key);
  void input_done();
  Command menu_key(Key key);
  Command menu_done();
  Command confirm_key(Key key);
  void open_signals();
  void open_sorts();
  void open_panels();
  void open_io_priorities();
  void open_autogroups();
  void open_users();
  void ask_nice(int by);

  History history_;
  std::shared_ptr<const Snapshot> shown_;
  bool paused_ = false;
  UserNames users_;
  std::vector<Row> rows_;
  RowChoice choice_;
  double delay_s_;
  int width_ = 80, height_ = 24;
  size_t table_height_ = 10;

  size_t cursor_ = 0, top_ = 0;
  int32_t chosen_tid_ = 0;
  uint64_t chosen_start_ = 0;  // its number may be another's by now
  bool follow_ = false;
  int shift_ = 0;  // columns by which command lines are shifted
  bool threads_ = false, whole_command_ = false;
  std::map<int32_t, uint64_t> tagged_;  // start_ticks by tid
  std::set<Panel> folded_;
  Tab tab_ = Tab::kNone;
  size_t tab_top_ = 0;
  Menu menu_;
  Input input_ = Input::kNone;
  std::string typed_, searched_, digits_;
  std::string message_;
  bool help_ = false;
  size_t help_top_ = 0;
  std::vector<Command::Target> targets_;  // as they were when a menu about them was opened
  Command pending_;                       // to be confirmed
};

}  // namespace flatout::screen

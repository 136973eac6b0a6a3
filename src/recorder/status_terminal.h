// The status line on the user's terminal, drawn only while the job is silent there; its title; and
// the first verdict, as one line above the job's own, where the job is never silent.
//
// The job writes to the terminal itself, so its output passes us by. inotify on the terminal's
// file tells when it wrote: flatout writes through /dev/tty, another file, so its own writes do not
// count. The line stands below the cursor, which stays where the job left it, and is erased as soon
// as the job writes again.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "recorder/event_loop.h"

namespace flatout::recorder {

struct StatusText {
  std::string line, title;             // safe for a terminal
  bool judged = false, found = false;  // there were enough steps to judge; a cause was found
};

class StatusTerminal {
 public:
  /// nullptr where there is nothing to draw on: no terminal, a dumb one, or nobody to see it.
  static std::unique_ptr<StatusTerminal> open(EventLoop& loop);
  ~StatusTerminal();
  StatusTerminal(const StatusTerminal&) = delete;
  StatusTerminal& operator=(const StatusTerminal&) = delete;

  /// Whether we are in the foreground, and no full-screen program holds the terminal.
  bool may_write() const;
  /// Whether the job has been silent for long enough for draw(). Call a few times a second.
  bool is_silent(TimePoint now);
  void draw(const std::string& line);
  /// Goes to the terminal's frame and disturbs no output.
  void set_title(const std::string& title);
  /// Puts a line above the one that the job is writing, which goes on where it was.
  void insert_line(const std::string& line);
  /// Removes the line; the title stays until the end.
  void hide();

 private:
  StatusTerminal(EventLoop& loop, int terminal) : loop_(loop), terminal_(terminal) {}
  bool watch_output();
  void job_wrote(TimePoint now);
  bool take_events();
  bool ours_now() const;
  void write_out(const std::string& text) const;

  EventLoop& loop_;
  int terminal_ = -1;
  int inotify_ = -1;  // -1: the job's output goes elsewhere
  bool titles_ = true;
  bool shown_ = false;
  std::string title_;
  TimePoint last_output_{};
};

}  // namespace flatout::recorder

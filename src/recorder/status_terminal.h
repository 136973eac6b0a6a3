// The status line and the title on the user's terminal, drawn only while the job is silent there.
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
  std::string line, title;  // safe for a terminal
};

class StatusTerminal {
 public:
  /// nullptr where there is nothing to draw on: no terminal, a dumb one, or nobody to see it.
  static std::unique_ptr<StatusTerminal> open(EventLoop& loop);
  ~StatusTerminal();
  StatusTerminal(const StatusTerminal&) = delete;
  StatusTerminal& operator=(const StatusTerminal&) = delete;

  /// Whether the job has been silent for long enough, we are in the foreground, and no full-screen
  /// program holds the terminal. Call a few times a second.
  bool may_draw(TimePoint now);
  void draw(const StatusText& text);
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
  bool titled_ = false;
  TimePoint last_output_{};
};

}  // namespace flatout::recorder

// The terminal: draws frames with ncurses, gives keys and clicks, and is left as it was found,
// whatever ends the program (but SIGKILL).
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/result.h"
#include "screen/render.h"

namespace flatout::screen {

struct Event {
  enum class Kind : uint8_t { kKey, kClick, kWheel, kResize };
  Kind kind = Kind::kKey;
  Key key = 0;
  int x = 0, y = 0;
  int rows = 0;  // of the wheel: down is positive
};

class Terminal {
 public:
  /// Errors: kUnsupported where standard input or output is no terminal, or TERM cannot be drawn
  /// on.
  static Result<std::unique_ptr<Terminal>> open();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int width() const;
  int height() const;
  bool unicode() const { return unicode_; }
  void draw(const Frame& frame);
  /// Sleeps until there is input, `wake_fd` can be read, or `timeout` is over.
  void wait(int wake_fd, Nanos timeout);
  std::optional<Event> next();
  /// SIGINT, SIGTERM or SIGHUP has come.
  static bool told_to_end();

 private:
  Terminal() = default;
  void choose_styles();
  bool unicode_ = false;
  struct Looks;
  std::unique_ptr<Looks> looks_;
};

}  // namespace flatout::screen

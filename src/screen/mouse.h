// What terminals say of the mouse (xterm: ctlseqs.txt, "Mouse Tracking"): one report for each
// button that goes down and each that comes up, ESC [ < button ; column ; row and M or m (mode
// 1006), or ESC [ M and three bytes (mode 1000 alone).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace flatout::screen {

enum class MouseAct : uint8_t { kNone, kClick, kWheelUp, kWheelDown };

struct MouseReport {
  MouseAct act = MouseAct::kNone;  // kNone: a button came up, or one that means nothing
  int x = 0, y = 0;                // from 0
};

/// Takes what follows the start of a report byte by byte, whenever it comes. That the first button
/// goes down is the click: when it comes up, or whether that is ever told, does not matter.
class MouseReader {
 public:
  enum class Form : uint8_t { kDecimal, kBytes };  // after ESC [ <, after ESC [ M

  explicit MouseReader(Form form) : form_(form) {}

  /// False: this byte ends the report; report() says what it was.
  bool add(unsigned char byte);
  /// Nothing where it was no report at all.
  std::optional<MouseReport> report() const;

 private:
  Form form_;
  std::string text_;
};

}  // namespace flatout::screen

// Draws a Session as a grid of cells: panels, the table of processes, the pane below it, menus.
#pragma once

#include <vector>

#include "screen/canvas.h"
#include "screen/session.h"

namespace flatout::screen {

/// A part of the screen that a click means something to.
struct Zone {
  enum class Kind : uint8_t { kRow, kHeading, kPanel, kFunctionKey };
  Kind kind = Kind::kRow;
  int x = 0, y = 0, end = 0;  // columns [x, end) of row y
  int value = 0;              // row, Column, Panel, number of the function key
};

struct Frame {
  Canvas canvas;
  std::vector<Zone> zones;
};

/// Pure but for telling the session how many rows of its table fit.
Frame render(Session& session, bool unicode);

}  // namespace flatout::screen

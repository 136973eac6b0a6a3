// What panels are drawn with: pieces of text on a line, bars, levels of a curve.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "screen/canvas.h"

namespace flatout::screen {

inline constexpr int kPanelLabel = 5;  // columns of a panel's name

std::string percent(double ratio);
std::string percent(const std::optional<double>& ratio);  // "-" where it is not known
std::string bytes(uint64_t value);
std::string bytes(const std::optional<uint64_t>& value);

struct BarPart {
  double share;
  Style style;
  char plain;  // tells the parts apart where there are no colours
};

/// "[|||||::    text]" between two columns.
void draw_bar(Canvas& canvas, int x, int y, int end, std::initializer_list<BarPart> parts,
              std::string_view text);

/// One cell of a curve, filled from its bottom up to a share of its height.
void draw_level(Canvas& canvas, int x, int y, double share, Style style);

/// Pieces of text on one line, as many as fit.
class Line {
 public:
  Line(Canvas& canvas, int x, int y, int end) : canvas_(canvas), x_(x), y_(y), end_(end) {}
  /// False where it does not fit any more.
  bool add(std::string_view text, Style style = Style::kPlain);
  /// What may be cut off: the last thing on the line.
  void rest(std::string_view text, Style style = Style::kPlain);

 private:
  Canvas& canvas_;
  int x_, y_, end_;
  bool first_ = true;
};

}  // namespace flatout::screen

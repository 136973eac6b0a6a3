#include "screen/panel_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "screen/panels.h"

namespace flatout::screen {
namespace {

constexpr std::string_view kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kPlainLevels[] = {"_", ".", "-", "=", "+", "*", "#", "@"};

}  // namespace

std::string percent(double ratio) { return fmt::format("{:.1f}%", ratio * 100); }
std::string percent(const std::optional<double>& ratio) { return ratio ? percent(*ratio) : "-"; }
std::string bytes(uint64_t value) { return short_bytes(static_cast<double>(value)); }
std::string bytes(const std::optional<uint64_t>& value) { return value ? bytes(*value) : "-"; }

void draw_bar(Canvas& canvas, int x, int y, int end, std::initializer_list<BarPart> parts,
              std::string_view text) {
  const int width = end - x - 2;
  if (width < 4) return;
  canvas.put(x, y, "[", Style::kBold);
  canvas.put(end - 1, y, "]", Style::kBold);
  double sum = 0;
  int from = 0;
  for (const BarPart& part : parts) {
    sum += std::clamp(part.share, 0.0, 1.0);
    const int to = std::min(width, static_cast<int>(std::lround(sum * width)));
    canvas.fill(x + 1 + from, y, to - from, static_cast<char32_t>(part.plain), part.style);
    from = std::max(from, to);
  }
  // The figure stands over the bar's end; where the bar is below it, in the bar's colour.
  const int at = end - 1 - static_cast<int>(text.size());
  for (size_t i = 0; i < text.size() && at > x; ++i) {
    const int column = at + static_cast<int>(i);
    const Style style = canvas.at(column, y).style;
    canvas.put(column, y, text.substr(i, 1), style == Style::kPlain ? Style::kDim : style,
               column + 1);
  }
}

void draw_level(Canvas& canvas, int x, int y, double share, Style style) {
  const auto level = static_cast<size_t>(std::clamp(std::lround(share * 7), 0L, 7L));
  canvas.put_either(x, y, kLevels[level], kPlainLevels[level], style);
}

bool Line::add(std::string_view text, Style style) {
  const int gap = first_ ? 0 : 2;
  if (x_ + gap + static_cast<int>(text.size()) > end_) return false;
  x_ = canvas_.put(x_ + gap, y_, text, style, end_);
  first_ = false;
  return true;
}

void Line::rest(std::string_view text, Style style) {
  x_ = canvas_.put(x_ + (first_ ? 0 : 2), y_, text, style, end_);
  first_ = false;
}

}  // namespace flatout::screen

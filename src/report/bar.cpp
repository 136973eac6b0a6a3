#include "report/bar.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/text.h"
#include "report/words.h"

namespace flatout::report {
namespace {

constexpr size_t kIndent = 10;

// The letter of a part in a bar without colour; the legend shows it.
constexpr std::string_view kLetters = "ihfbocskxC";

std::string cell(size_t part, const TextOptions& options) {
  if (options.color) return options.unicode ? "█" : "#";
  return std::string(1, kLetters[part]);
}

}  // namespace

std::array<size_t, model::kPartCount> bar_cells(const Shares& shares, size_t cells) {
  std::array<size_t, model::kPartCount> out{};
  std::array<double, model::kPartCount> rest{};
  double total = 0;
  for (const double share : shares) total += std::isfinite(share) && share > 0 ? share : 0;
  if (total <= 0) return out;
  size_t used = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double share = std::isfinite(shares[i]) && shares[i] > 0 ? shares[i] / total : 0;
    const double exact = share * static_cast<double>(cells);
    out[i] = static_cast<size_t>(exact);
    rest[i] = exact - static_cast<double>(out[i]);
    used += out[i];
  }
  for (; used < cells; ++used) {
    const auto most = std::max_element(rest.begin(), rest.end());
    ++out[static_cast<size_t>(most - rest.begin())];
    *most = -1;
  }
  return out;
}

Line breakdown_bar(const Shares& shares, size_t width, const TextOptions& options) {
  Line line{{std::string(kIndent, ' ')}};
  const auto cells = bar_cells(shares, width);
  for (size_t i = 0; i < cells.size(); ++i) {
    std::string text;
    for (size_t n = 0; n < cells[i]; ++n) text += cell(i, options);
    if (!text.empty()) line.push_back({std::move(text), Paint::kPart, static_cast<int>(i)});
  }
  return line;
}

std::vector<Line> breakdown_legend(const Shares& shares, size_t width, const TextOptions& options) {
  std::vector<Line> lines;
  size_t used = width;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!(shares[i] >= 0.005)) continue;
    const std::string text =
        " " + std::string(label(static_cast<model::Part>(i))) + " " + format_percent(shares[i]);
    const size_t size = 1 + text.size();
    if (used + 3 + size > width) {
      lines.push_back({{std::string(kIndent, ' ')}});
      used = 0;
    } else {
      lines.back().push_back({"   "});
      used += 3;
    }
    lines.back().push_back({cell(i, options), Paint::kPart, static_cast<int>(i)});
    lines.back().push_back({text});
    used += size;
  }
  return lines;
}

}  // namespace flatout::report

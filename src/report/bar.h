// The breakdown of a step as one bar and its legend.
#pragma once

#include <array>
#include <vector>

#include "model/step.h"
#include "report/terminal.h"

namespace flatout::report {

using Shares = std::array<double, model::kPartCount>;

/// Shares of `cells` cells by largest remainder: they add up exactly, and a part of at least half a
/// cell is not lost to rounding.
std::array<size_t, model::kPartCount> bar_cells(const Shares& shares, size_t cells);
/// One line, indented as the report's text. Without colour each part has a letter of its own.
Line breakdown_bar(const Shares& shares, size_t width, const TextOptions& options);
/// "input wait 61 %  forward 13 %" in as few lines as needed; parts under 0.5 % are left out.
std::vector<Line> breakdown_legend(const Shares& shares, size_t width, const TextOptions& options);

}  // namespace flatout::report

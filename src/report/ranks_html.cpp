#include "report/ranks_html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "report/html_parts.h"
#include "report/words.h"

namespace flatout::report {

using model::Rank;
using model::RankReport;

namespace {

constexpr size_t kMostRows = 64;
constexpr int kStripWidth = 1000, kStripHeight = 80;

Nanos longest(const RankReport& report) {
  Nanos most{1};
  for (const Rank& r : report.ranks) most = std::max(most, r.own + r.waiting);
  return most;
}

std::string rect(double x, double y, double width, double height, std::string_view css) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\"/>", x, y,
      width, height, css);
}

/// A bar for each rank: its own work below, its waiting above.
std::string strip(const RankReport& report) {
  const double most = to_s(longest(report));
  const double width = static_cast<double>(kStripWidth) / static_cast<double>(report.ranks.size());
  const double bar = width > 4 ? width - 2 : width;
  std::string out = fmt::format(
      "<svg class=\"ranks\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"Work and waiting of each rank\">",
      kStripWidth, kStripHeight);
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    const Rank& r = report.ranks[i];
    const double own = to_s(r.own) / most * kStripHeight;
    const double waiting = to_s(r.waiting) / most * kStripHeight;
    const double x = static_cast<double>(i) * width;
    out += fmt::format("<g><title>rank {}: {} of work, {} in collectives</title>", r.number,
                       format_duration(r.own), format_duration(r.waiting));
    out += rect(x, kStripHeight - own, bar, own, r.late ? "late" : "own");
    out += rect(x, kStripHeight - own - waiting, bar, waiting, "waiting") + "</g>";
  }
  return out + "</svg>\n";
}

std::string row(const Rank& r) {
  std::string ids;
  for (const model::Finding& f : r.findings) {
    ids += (ids.empty() ? "" : ", ") + html_text(f.id);
  }
  return fmt::format(
      "<tr{}><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
      "<td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>\n",
      r.late ? " class=\"left\"" : "", r.number, html_text(r.host), r.pid, r.steps.count,
      format_duration(r.own), format_duration(r.waiting), html_text(exit_text(r)), ids);
}

}  // namespace

std::string ranks_html(const RankReport& report) {
  std::string out = "<section id=\"ranks\"><h2>Ranks</h2>\n";
  if (report.common_steps > 0) {
    out += fmt::format(
        "<p class=\"muted\">Means over {} steps of {}. Dark: a rank's own work; light: what it "
        "waits in collectives, of which {} even the last one spends there.</p>\n",
        report.common_steps, format_duration(report.step), format_duration(report.exposed));
    out += strip(report);
  } else {
    out += "<p class=\"muted\">The ranks have no steps in common that could be compared.</p>\n";
  }
  out +=
      "<div class=\"scroll\"><table><thead><tr><th class=\"n\">Rank</th><th>Host</th>"
      "<th class=\"n\">pid</th><th class=\"n\">Steps</th><th class=\"n\">Work</th>"
      "<th class=\"n\">Waits</th><th>State</th><th>Findings of its own</th></tr></thead><tbody>\n";
  for (const Rank* r : telling_ranks(report, kMostRows)) out += row(*r);
  out += "</tbody></table></div>\n";
  if (report.ranks.size() > kMostRows) {
    out += fmt::format("<p class=\"muted\">{} more ranks are in findings.json.</p>\n",
                       report.ranks.size() - kMostRows);
  }
  return out + "</section>\n";
}

}  // namespace flatout::report

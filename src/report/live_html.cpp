#include "report/live_html.h"

#include <fmt/format.h>

#include "report/html_parts.h"

namespace flatout::report {

Page runs_page() {
  const std::string body =
      top_html("flatout serve", "") +
      "<main class=\"wrap\">\n<p id=\"state\" class=\"muted\" role=\"status\">Asking for the runs "
      "…</p>\n<noscript><p>This page needs JavaScript; <a href=\"/runs.json\">runs.json</a> has "
      "the "
      "same as text.</p></noscript>\n"
      "<section id=\"runs\"><h2>Runs</h2>\n<div class=\"tools\"><input id=\"filter\" "
      "type=\"search\" placeholder=\"Filter by command, host or verdict\" aria-label=\"Filter the "
      "runs\"><a id=\"compare\" class=\"button\" hidden>Compare</a></div>\n<div "
      "class=\"scroll\"><table><thead><tr><th><span class=\"hidden\">Compare</span></th>"
      "<th>Started</th><th>Run</th><th class=\"n\">Rank</th><th>State</th><th "
      "class=\"n\">Steps</th>"
      "<th class=\"n\">Median step</th><th>Verdict</th></tr></thead><tbody id=\"rows\"></tbody>"
      "</table></div></section>\n"
      "<section id=\"history\" hidden><h2>History</h2>\n<p class=\"muted\">The median step of each "
      "run of the same command, oldest first.</p>\n<div id=\"histories\"></div></section>\n"
      "</main>\n<footer class=\"wrap muted\">Metrics for Prometheus: <a "
      "href=\"/metrics\">/metrics</a></footer>\n";
  return make_page("Runs", {asset_page_css(), asset_runs_css()},
                   {asset_lanes_js(), asset_theme_js(), asset_runs_js()}, body, true);
}

Page live_page(std::string_view id, std::string_view body, uint64_t revision, bool live) {
  const std::string bar = fmt::format(
      "<div id=\"live\" class=\"wrap bar\" data-run=\"{}\" data-revision=\"{}\" "
      "data-live=\"{}\"><a href=\"/\">All runs</a><span id=\"live-state\" class=\"muted\" "
      "role=\"status\"></span><button id=\"live-pause\" type=\"button\"{}>Pause</button></div>\n",
      html_text(id), revision, live ? "yes" : "no", live ? "" : " hidden");
  return make_page(id, {asset_page_css(), asset_flame_css(), asset_runs_css()},
                   {asset_chart_js(), asset_flame_js(), asset_lanes_js(), asset_theme_js(),
                    asset_page_js(), asset_live_js()},
                   bar + std::string(body), true);
}

}  // namespace flatout::report

#include "report/html.h"

#include <fmt/format.h>

#include <ctime>
#include <string>
#include <string_view>

#include "base/text.h"
#include "report/flame.h"
#include "report/html_data.h"
#include "report/html_page.h"
#include "report/html_parts.h"
#include "report/profile.h"
#include "report/ranks_html.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Run;

/// "2026-11-22 16:21 UTC"; "" where it is not known.
std::string begin_text(const Run& run) {
  const auto ns = parse_number<int64_t>(run.fact("run.begin_unix_ns"));
  if (!ns) return "";
  const auto seconds = static_cast<std::time_t>(*ns / 1'000'000'000);
  std::tm utc{};
  char text[32];
  if (::gmtime_r(&seconds, &utc) == nullptr) return "";
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc)};
}

std::string header_html(const Run& run) {
  std::string facts;
  const auto add = [&](std::string_view text, std::string_view css = "") {
    if (!text.empty()) facts += fmt::format("<li class=\"{}\">{}</li>", css, html_text(text));
  };
  add(format_duration(run.end - run.begin));
  add(exit_text(run), failed(run) ? "bad" : "");
  add(run.fact("host.name"));
  if (const std::string_view v = run.fact("torch.version"); !v.empty()) {
    add("torch " + std::string(v));
  }
  if (const std::string_view v = run.fact("python.version"); !v.empty()) {
    add("Python " + std::string(v));
  }
  add(begin_text(run));
  return top_html(command_of(run), facts);
}

std::string stacks_html(const Profile& profile) {
  const std::string flame = flame_svg_fragment(profile);
  if (flame.empty()) {
    return "<section id=\"stacks\"><h2>Threads and stacks</h2><p class=\"muted\">No stacks were "
           "read.</p></section>\n";
  }
  return "<section id=\"stacks\"><h2>Threads and stacks</h2>\n"
         "<h3>What the threads did</h3>\n<div id=\"thread-states\"></div>\n"
         "<h3>Flame graph</h3>\n<p class=\"muted\">Warm: on a core. Cool: waiting, and the last "
         "frame says for what. Click or press Enter to zoom, Esc for all, arrows to move.</p>\n"
         "<div class=\"tools\"><input id=\"flame-search\" type=\"search\" "
         "placeholder=\"Search a function or file\" aria-label=\"Search the flame graph\">"
         "<button id=\"flame-reset\" type=\"button\">Show all</button></div>\n"
         "<p id=\"flame-info\" class=\"muted\" aria-live=\"polite\">&nbsp;</p>\n"
         "<div id=\"flame\">" +
         flame + "</div></section>\n";
}

std::string lanes_html(const Run& run) {
  if (run.slices.empty()) return "";
  return "<section id=\"workers\"><h2>Loop and workers over time</h2>\n"
         "<p class=\"muted\">The training thread's phases above, what each loader worker did "
         "below. "
         "A number is the index of the batch.</p>\n"
         "<div class=\"tools\"><label>Show <select id=\"lane-window\"></select></label>"
         "<button id=\"lane-out\" type=\"button\" aria-label=\"Zoom out\">−</button>"
         "<button id=\"lane-in\" type=\"button\" aria-label=\"Zoom in\">+</button></div>\n"
         "<div id=\"lanes\"></div><ul class=\"legend\" id=\"lane-legend\"></ul></section>\n";
}

}  // namespace

std::string report_body(const Run& run, const model::Diagnosis& diagnosis,
                        const HtmlOptions& options) {
  const Profile profile = make_profile(run, 2500);
  std::string out = header_html(run);
  const bool lanes = !run.slices.empty();
  out +=
      "<nav class=\"jump\" aria-label=\"Sections\"><div class=\"wrap\"><a href=\"#verdict\">Verdict"
      "</a>";
  if (options.comparison != nullptr) out += "<a href=\"#compare\">Compare</a>";
  if (diagnosis.ranks != nullptr) out += "<a href=\"#ranks\">Ranks</a>";
  out += "<a href=\"#steps\">Steps</a>";
  if (!run.devices.empty()) out += "<a href=\"#devices\">Device</a>";
  out += "<a href=\"#machine\">Machine</a>";
  if (lanes) out += "<a href=\"#workers\">Workers</a>";
  out +=
      "<a href=\"#stacks\">Stacks</a><a href=\"#details\">Details</a></div></nav>\n"
      "<main class=\"wrap\">\n";
  out += verdict_html(
      diagnosis,
      run.steps.summary.mean.count() > 0 ? run.steps.summary.mean : run.steps.summary.median,
      failed(run));
  if (const std::string damage = run.damage(); !damage.empty()) {
    out += "<p class=\"change\" id=\"damage\">The recording is incomplete: " + html_text(damage) +
           ".</p>\n";
  }
  if (options.comparison != nullptr) out += comparison_html(*options.comparison);
  if (diagnosis.ranks != nullptr) out += ranks_html(*diagnosis.ranks);
  out += steps_html(run);
  out += devices_html(run);
  out +=
      "<section id=\"machine\"><h2>Machine and job over time</h2>\n<p class=\"muted\">All curves "
      "share the steps' time axis. Drag across a chart to zoom in, double-click to zoom out.</p>\n"
      "<div id=\"charts\"></div></section>\n";
  out += lanes_html(run);
  out += stacks_html(profile);
  out += details_html(run);
  out +=
      "</main>\n<footer class=\"wrap muted\">Made by flatout from what it measured; this file "
      "loads nothing and sends nothing.</footer>\n";
  out +=
      "<script type=\"application/json\" id=\"data\">" + chart_data(run, profile) + "</script>\n";
  return out;
}

std::string render_html(const Run& run, const model::Diagnosis& diagnosis,
                        const HtmlOptions& options) {
  const std::string title =
      diagnosis.findings.empty() ? diagnosis.verdict : diagnosis.findings[0].title;
  return make_page(title, {asset_page_css(), asset_flame_css()},
                   {asset_chart_js(), asset_flame_js(), asset_lanes_js(), asset_theme_js(),
                    asset_page_js()},
                   report_body(run, diagnosis, options))
      .html;
}

}  // namespace flatout::report

#include "report/html.h"

#include <fmt/format.h>

#include <string_view>

#include "base/text.h"
#include "report/assets.h"
#include "report/flame.h"
#include "report/html_data.h"
#include "report/html_parts.h"
#include "report/profile.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Run;

// 'sha256-<base64>' of a Content-Security-Policy from the hexadecimal digest.
std::string csp_hash(std::string_view hex) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto nibble = [](char c) -> uint32_t {
    return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::string out = "'sha256-";
  // 64 hexadecimal digits: ten times 6 digits (3 bytes) and 4 more (2 bytes).
  for (size_t i = 0; i < hex.size(); i += 6) {
    uint32_t bits = 0;
    const size_t n = std::min<size_t>(6, hex.size() - i);
    for (size_t k = 0; k < 6; ++k) bits = bits << 4 | (k < n ? nibble(hex[i + k]) : 0);
    const size_t digits = n / 2 + 1;
    for (size_t k = 0; k < 4; ++k) out += k < digits ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out + "'";
}

std::string policy() {
  return "default-src 'none'; base-uri 'none'; form-action 'none'; style-src " +
         csp_hash(asset_page_css_sha256()) + " " + csp_hash(asset_flame_css_sha256()) +
         "; script-src " + csp_hash(asset_chart_js_sha256()) + " " +
         csp_hash(asset_flame_js_sha256()) + " " + csp_hash(asset_lanes_js_sha256()) + " " +
         csp_hash(asset_page_js_sha256());
}

void inline_style(std::string& out, std::string_view css) {
  out += "<style>";
  out += css;
  out += "</style>\n";
}
void inline_script(std::string& out, std::string_view js) {
  out += "<script>";
  out += js;
  out += "</script>\n";
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
  add(run.fact("begin.time"));
  return fmt::format(
      "<header class=\"top\"><div class=\"wrap\"><div class=\"brand\"><b>flatout</b>"
      "<button id=\"theme\" type=\"button\" aria-label=\"Switch between dark and light\">◐</button>"
      "</div>\n<p class=\"command\"><code>{}</code></p>\n<ul "
      "class=\"run\">{}</ul></div></header>\n",
      html_text(command_of(run)), facts);
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

std::string render_html(const Run& run, const model::Diagnosis& diagnosis,
                        const HtmlOptions& options) {
  const Profile profile = make_profile(run, 2500);
  const std::string title =
      diagnosis.findings.empty() ? diagnosis.verdict : diagnosis.findings[0].title;
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"" +
      policy() +
      "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>" +
      html_text(title) + " – flatout</title>\n";
  inline_style(out, asset_page_css());
  inline_style(out, asset_flame_css());
  out += "</head>\n<body>\n" + header_html(run);
  const bool lanes = !run.slices.empty();
  out +=
      "<nav class=\"jump\" aria-label=\"Sections\"><div class=\"wrap\"><a href=\"#verdict\">Verdict"
      "</a>";
  if (options.comparison != nullptr) out += "<a href=\"#compare\">Compare</a>";
  out += "<a href=\"#steps\">Steps</a><a href=\"#machine\">Machine</a>";
  if (lanes) out += "<a href=\"#workers\">Workers</a>";
  out +=
      "<a href=\"#stacks\">Stacks</a><a href=\"#details\">Details</a></div></nav>\n"
      "<main class=\"wrap\">\n";
  out += verdict_html(run, diagnosis);
  if (options.comparison != nullptr) out += comparison_html(*options.comparison);
  out += steps_html(run);
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
  inline_script(out, asset_chart_js());
  inline_script(out, asset_flame_js());
  inline_script(out, asset_lanes_js());
  inline_script(out, asset_page_js());
  out += "</body>\n</html>\n";
  return out;
}

}  // namespace flatout::report

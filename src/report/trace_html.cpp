#include "report/trace_html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "report/html_page.h"
#include "report/html_parts.h"
#include "report/json_values.h"
#include "report/trace_words.h"

namespace flatout::report {
namespace {

using namespace model;  // NOLINT: the nouns of the whole room

constexpr size_t kMostKernels = 20;
constexpr size_t kMostName = 300;  // bytes
constexpr size_t kMostKernelName = 160;
constexpr size_t kMostRanks = 64;

std::string name_json(std::string_view s) {
  return script_text(escape_terminal(s.substr(0, kMostName)));
}

std::string facts_html(const std::vector<TraceSummary>& traces) {
  uint64_t events = 0, bytes = 0, steps = 0;
  for (const TraceSummary& t : traces) {
    events += t.events;
    bytes += t.bytes;
    steps += t.steps.size();
  }
  std::string out = fmt::format("<li>{} events</li><li>{}</li>", events,
                                format_bytes(static_cast<double>(bytes)));
  if (steps > 0) {
    out += fmt::format("<li>{} steps, {} each</li>", steps, time_text(mean_step(traces.front())));
  }
  if (traces.size() > 1) out += fmt::format("<li>{} traces</li>", traces.size());
  for (const TraceSummary& t : traces) {
    if (!t.damage.any() && !t.incomplete()) continue;
    out += "<li class=\"bad\">incomplete: " +
           html_text(t.incomplete()     ? unrecorded_text(t)
                     : t.damage.cut_off ? "the file is cut off"
                                        : "some events could not be read") +
           "</li>";
    break;
  }
  return out;
}

/// Where each device's time went, a row each.
std::string devices_html(const std::vector<TraceSummary>& traces) {
  std::string rows;
  size_t count = 0;
  for (const TraceSummary& t : traces) {
    for (const DeviceSummary& d : t.devices) {
      if (++count > kMostRanks) continue;
      const DeviceTimes& times = d.times;
      rows += fmt::format(
          "<tr><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
          "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
          "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
          t.rank >= 0 && traces.size() > 1 ? fmt::format("rank {}, ", t.rank) : "",
          html_text(d.name.empty() ? fmt::format("device {}", d.device)
                                   : fmt::format("device {}, {}", d.device, d.name)),
          time_text(times.span), share_text(times.compute, times.span),
          share_text(times.exposed_communication(), times.span),
          share_text(times.exposed_copies, times.span), share_text(d.idle.input_wait, times.span),
          share_text(d.idle.host_wait, times.span), share_text(d.idle.kernel_wait, times.span),
          share_text(d.idle.other - d.unknown, times.span), share_text(d.unknown, times.span));
    }
  }
  if (rows.empty()) return "";
  return "<section id=\"devices\"><h2>Where the devices' time went</h2>\n<div class=\"scroll\">"
         "<table><thead><tr><th>Device</th><th class=\"n\">Time</th><th class=\"n\">Compute</th>"
         "<th class=\"n\">Exposed communication</th><th class=\"n\">Exposed copies</th>"
         "<th class=\"n\">Idle: input</th><th class=\"n\">Idle: host</th>"
         "<th class=\"n\">Idle: between kernels</th><th class=\"n\">Idle: other work</th>"
         "<th class=\"n\">Idle: unknown</th></tr></thead>"
         "<tbody>\n" +
         rows + "</tbody></table></div></section>\n";
}

std::string kernels_html(const TraceSummary& t) {
  if (t.devices.empty() || t.devices[0].kernels.empty()) return "";
  const DeviceSummary& d = t.devices[0];
  std::string rows;
  for (size_t i = 0; i < d.kernels.size() && i < kMostKernels; ++i) {
    const KernelStat& k = d.kernels[i];
    rows += fmt::format(
        "<tr><td><code>{}</code></td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
        html_text(std::string_view(k.name).substr(0, kMostKernelName)),
        share_text(k.sum, d.times.span), time_text(k.sum), k.count,
        time_text(k.sum / static_cast<int64_t>(std::max<uint64_t>(k.count, 1))),
        html_text(std::string_view(k.owner).substr(0, kMostKernelName)));
  }
  return fmt::format(
      "<section id=\"kernels\"><h2>Kernels and copies of device {}</h2>\n<div class=\"scroll\">"
      "<table><thead><tr><th>Name</th><th class=\"n\">Of its time</th><th class=\"n\">In all</th>"
      "<th class=\"n\">Count</th><th "
      "class=\"n\">Mean</th><th>Operator</th></tr></thead><tbody>\n{}</tbody></table>"
      "</div></section>\n",
      d.device, rows);
}

/// The chain that a step's length follows from, and what would be left of it.
std::string path_html(const TraceSummary& t) {
  if (!t.path) return "";
  const CriticalPath& p = *t.path;
  std::string parts, pieces, answers;
  for (size_t i = 0; i < kPathParts; ++i) {
    if (p.parts[i] * 200 < p.length) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", label(static_cast<PathPart>(i)),
                         share_text(p.parts[i], p.length));
  }
  for (const CriticalPath::Piece& piece : p.pieces) {
    pieces += fmt::format(
        "<tr><td><code>{}</code></td><td>{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>\n",
        html_text(std::string_view(piece.name).substr(0, kMostKernelName)),
        html_text(label(piece.part)), share_text(piece.time, p.length), time_text(piece.time));
  }
  for (const CriticalPath::WhatIf& w : p.what_if) {
    answers += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                           html_text(what_if_text(w).substr(0, kMostKernelName)),
                           time_text(w.length), share_text(p.length - w.length, p.length));
  }
  std::string out = fmt::format(
      "<section id=\"path\"><h2>Critical path of {}: {}</h2>\n<p>{}</p>\n"
      "<div class=\"scroll\"><table><thead><tr><th>Name</th><th>What</th><th class=\"n\">Of the "
      "path</th>"
      "<th class=\"n\">In all</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
      html_text(p.step.empty() ? "a window from the middle" : p.step), time_text(p.length),
      html_text(parts), pieces);
  if (!answers.empty()) {
    out +=
        "<div class=\"scroll\"><table><thead><tr><th>What if</th><th class=\"n\">Left</th>"
        "<th class=\"n\">Saved</th></tr></thead><tbody>\n" +
        answers + "</tbody></table></div>\n";
  }
  return out + "</section>\n";
}

/// The unit that a level's numbers are in: fine enough for what it shows.
int64_t unit_of(const PictureLevel& level) {
  int64_t unit = 1;
  while (unit * 100 <= level.resolution) unit *= 10;
  return unit;
}

/// [gap since the last, length, name, …] of a row; a block has its count, negative, before the
/// name.
void row_json(std::string& out, const std::vector<PictureSlice>& row, const PictureLevel& level,
              int64_t unit) {
  const auto in_units = [&](int64_t t) { return (t - level.begin) / unit; };
  int64_t at = 0;
  out += "[";
  for (const PictureSlice& s : row) {
    const int64_t begin = in_units(s.begin), end = std::max(in_units(s.end), begin);
    fmt::format_to(std::back_inserter(out), "{}{},{},", out.back() == '[' ? "" : ",", begin - at,
                   end - begin);
    if (s.count > 1) fmt::format_to(std::back_inserter(out), "-{},", s.count);
    fmt::format_to(std::back_inserter(out), "{}", s.name);
    at = end;
  }
  out += "]";
}

template <class T, class F>
void list_json(std::string& out, const std::vector<T>& all, F&& each) {
  out += "[";
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out += ",";
    each(all[i]);
  }
  out += "]";
}

void level_json(std::string& out, const PictureLevel& level) {
  const int64_t unit = unit_of(level);
  fmt::format_to(std::back_inserter(out),
                 "{{\"begin\":{},\"end\":{},\"resolution\":{},\"unit\":{},\"tracks\":", level.begin,
                 level.end, level.resolution, unit);
  list_json(out, level.tracks, [&](const auto& rows) {
    list_json(out, rows, [&](const auto& row) { row_json(out, row, level, unit); });
  });
  out += "}\n";
}

void picture_json(std::string& out, const TracePicture& p) {
  static constexpr std::string_view kKinds[] = {"thread", "stream", "idle"};
  fmt::format_to(std::back_inserter(out),
                 "{{\"file\":{},\"rank\":{},\"length\":{},\"offset\":{},\"hidden_tracks\":{},"
                 "\"hidden_slices\":{},\"names\":",
                 name_json(p.file), p.rank, p.length, p.offset, p.hidden_tracks, p.hidden_slices);
  list_json(out, p.names, [&](const std::string& name) { out += name_json(name); });
  out += ",\"tracks\":";
  list_json(out, p.tracks, [&](const PictureTrack& t) {
    fmt::format_to(
        std::back_inserter(out), "{{\"kind\":\"{}\",\"process\":{},\"thread\":{},\"slices\":{}}}",
        kKinds[static_cast<size_t>(t.kind)], name_json(t.process), name_json(t.thread), t.slices);
  });
  out += ",\"places\":";
  list_json(out, p.places, [&](const PicturePlace& place) {
    fmt::format_to(std::back_inserter(out), "{{\"label\":{},\"begin\":{},\"end\":{}}}",
                   name_json(place.label), place.begin, place.end);
  });
  out += ",\"levels\":";
  list_json(out, p.levels, [&](const PictureLevel& level) { level_json(out, level); });
  out += "}";
}

constexpr std::string_view kTimeline =
    "<section id=\"timeline\"><h2>Timeline</h2>\n"
    "<p class=\"muted\">Drag to move, Ctrl and the wheel (or two fingers) to zoom, double-click a "
    "slice to fill the view with it. Keys: W S A D, 0 for all.</p>\n"
    "<div class=\"tools\"><label>Go to <select id=\"place\"><option value=\"\">all of it</option>"
    "</select></label><button id=\"zoom-out\" type=\"button\" aria-label=\"Zoom out\">−</button>"
    "<button id=\"zoom-in\" type=\"button\" aria-label=\"Zoom in\">+</button>"
    "<input id=\"search\" type=\"search\" placeholder=\"Search a name\" aria-label=\"Search the "
    "timeline\"></div>\n<p id=\"slice-info\" class=\"muted\" aria-live=\"polite\">&nbsp;</p>\n"
    "<div id=\"view\" tabindex=\"0\" role=\"application\" aria-label=\"Timeline\"></div>\n"
    "<p id=\"view-note\" class=\"muted\"></p></section>\n";

}  // namespace

std::string render_trace_html(const std::vector<TraceSummary>& traces,
                              const TraceDiagnosis& diagnosis,
                              const std::vector<TracePicture>& pictures) {
  const TraceSummary& first = traces.front();
  std::string subject = first.file;
  if (traces.size() > 1) subject += fmt::format(" and {} more", traces.size() - 1);
  std::string body = top_html(subject, facts_html(traces));
  body += "<main class=\"wrap wide\">\n" + verdict_html(diagnosis, Nanos(mean_step(first)));
  body += devices_html(traces);
  body += kTimeline;
  body += path_html(first);
  body += kernels_html(first);
  body +=
      "</main>\n<footer class=\"wrap muted\">Made by flatout from the trace; this file loads "
      "nothing and sends nothing.</footer>\n<script type=\"application/json\" id=\"data\">";
  list_json(body, pictures, [&](const TracePicture& p) { picture_json(body, p); });
  body += "</script>\n";
  return make_page(diagnosis.headline, {asset_page_css(), asset_trace_css()},
                   {asset_theme_js(), asset_trace_js()}, body)
      .html;
}

}  // namespace flatout::report

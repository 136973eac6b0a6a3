#include "report/html_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Finding;
using model::Run;

constexpr size_t kMostText = 4000;  // of one text, in bytes
constexpr size_t kMostRows = 200;   // of one table

std::string where_html(const model::Where& w) {
  std::string out = "<code>" + html_text(w.file);
  if (w.line > 0) out += fmt::format(":{}", w.line);
  out += "</code>";
  if (!w.function.empty()) out += " in <code>" + html_text(w.function) + "</code>";
  return out;
}

std::string number(std::string_view value, std::string_view text, std::string_view css = "") {
  return fmt::format("<div class=\"number {}\"><dd>{}</dd><dt>{}</dt></div>", css, value, text);
}

std::string numbers_html(const Finding& f, Nanos step) {
  std::string out;
  if (f.gain) {
    out += number(factor_text(*f.gain), "steps per second without it", "gain");
  }
  if (f.cost_ms_per_step) {
    const Nanos cost = nanos(*f.cost_ms_per_step * 1e6);
    const std::string of = f.between_steps ? "per step, between the steps"
                           : step.count() > 0
                               ? fmt::format("per step, of {} on average", format_duration(step))
                               : "per step";
    out += number(format_duration(cost), of);
  } else if (f.cost_bytes) {
    out += number(format_bytes(*f.cost_bytes), "held");
  }
  if (f.confidence > 0) out += number(format_percent(f.confidence), "sure");
  return out.empty() ? "" : "<dl class=\"numbers\">" + out + "</dl>\n";
}

std::string value_text(const model::Evidence& e) {
  if (!std::isfinite(e.value)) return "";
  if (e.unit == "ratio") return format_percent(e.value);
  if (e.unit == "bytes") return format_bytes(e.value);
  if (e.unit == "ms") return format_duration(nanos(e.value * 1e6));
  if (e.unit == "ns") return format_duration(nanos(e.value));
  return format_number(e.value) + (e.unit.empty() ? "" : " " + e.unit);
}

std::string evidence_html(const Finding& f) {
  if (f.evidence.empty()) return "";
  std::string out =
      "<h3>What shows it</h3>\n<div class=\"scroll\"><table class=\"evidence\"><thead><tr>"
      "<th>Measured</th><th class=\"n\">Value</th><th>Source</th>"
      "<th class=\"n\">Readings</th></tr></thead><tbody>\n";
  for (const model::Evidence& e : f.evidence) {
    const bool lines = e.text.find('\n') != std::string::npos;
    std::string text;
    for (const std::string_view line : split(std::string_view(e.text).substr(0, kMostText), '\n')) {
      text += (text.empty() ? "" : "\n") + html_text(line);
    }
    out += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td><code>{}</code></td>"
        "<td class=\"n\">{}</td></tr>\n",
        lines ? "<pre>" + text + "</pre>" : text, lines ? "" : html_text(value_text(e)),
        html_text(e.source), e.readings);
  }
  return out + "</tbody></table></div>\n";
}

std::string finding_body(const Finding& f, Nanos step) {
  std::string out = numbers_html(f, step);
  if (f.where) out += "<p class=\"where\"><span>Where</span> " + where_html(*f.where) + "</p>\n";
  if (!f.remedies.empty()) {
    out += "<h3>What to do</h3>\n<ul class=\"do\">\n";
    for (const model::Suggestion& r : f.remedies) out += "<li>" + html_text(r.text) + "</li>\n";
    out += "</ul>\n";
  }
  return out + evidence_html(f);
}

std::string row(std::string_view key, std::string_view value) {
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", html_text(key),
                     html_text(value));
}

std::string ms_text(double ms) { return format_duration(nanos(ms * 1e6)); }
std::string signed_ms(double ms) {
  return (ms < 0 ? "−" : "+") + format_duration(nanos(std::fabs(ms) * 1e6));
}

std::string processes_html(const Run& run) {
  std::string rows;
  size_t count = 0;
  size_t shown = 0;
  for (const model::Process& p : run.processes) {
    if (!p.in_job) continue;
    if (++count > kMostRows) continue;
    ++shown;
    std::string ended =
        !p.ended ? (run.finished ? "still runs" : "runs") : format_duration(p.end - p.start);
    rows += fmt::format(
        "<tr{}><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td>"
        "<td><code>{}</code></td></tr>\n",
        !p.ended && run.finished ? " class=\"left\"" : "", p.pid, since_begin(run, p.start), ended,
        html_text(p.name), html_text(p.command));
  }
  if (count == 0) return "";
  std::string out = fmt::format(
      "<details{}><summary>Processes of the job <span class=\"count\">{}</span></summary>"
      "<div class=\"scroll\"><table><thead><tr><th class=\"n\">pid</th><th class=\"n\">Start</th>"
      "<th>Lived</th><th>Name</th><th>Command</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
      survivors(run).empty() ? "" : " open", count, rows);
  if (shown < count) out += fmt::format("<p class=\"muted\">and {} more</p>\n", count - shown);
  return out + "</details>\n";
}

}  // namespace

std::string html_text(std::string_view s) {
  const bool cut = s.size() > kMostText;
  return escape_html(escape_terminal(s.substr(0, kMostText))) + (cut ? "…" : "");
}

std::string verdict_html(const model::Diagnosis& d, Nanos step, bool failed) {
  std::string out = "<section id=\"verdict\" aria-label=\"Verdict\">\n";
  if (d.findings.empty()) {
    const bool healthy = d.verdict == "healthy" && d.judged && !failed;
    const std::string headline = !d.headline.empty() ? d.headline
                                 : d.verdict == "none"
                                     ? "No verdict yet: too little was seen to judge."
                                     : "Healthy: nothing found that costs more than 5 % of a step.";
    out += fmt::format(
        "<article class=\"finding first {}\"><p class=\"id\"><span class=\"mark\" "
        "aria-hidden=\"true\">{}</span><code>{}</code></p><h1>{}</h1></article>\n",
        healthy ? "good" : "unknown", healthy ? "✓" : "?", html_text(d.verdict),
        html_text(headline));
  }
  for (size_t i = 0; i < d.findings.size(); ++i) {
    const Finding& f = d.findings[i];
    const char* css = f.ended_the_job ? "bad" : "warn";
    if (i == 0) {
      out += fmt::format(
          "<article class=\"finding first {}\">\n<p class=\"id\"><span class=\"mark\" "
          "aria-hidden=\"true\">{}</span><code>{}</code></p>\n<h1>{}</h1>\n{}</article>\n",
          css, f.ended_the_job ? "✗" : "▲", html_text(f.id), html_text(f.title),
          finding_body(f, step));
      if (d.findings.size() > 1) out += "<h2 class=\"also\">Also found</h2>\n";
    } else {
      out += fmt::format(
          "<details class=\"finding {}\"><summary><span class=\"gain\">{}</span>"
          "<span class=\"title\">{}</span><code>{}</code></summary>\n{}</details>\n",
          css, f.gain ? factor_text(*f.gain) : "–", html_text(f.title), html_text(f.id),
          finding_body(f, step));
    }
  }
  if (!d.findings.empty() && !d.remark.empty()) {
    out += "<p class=\"change\">" + html_text(d.remark) + "</p>\n";
  }
  return out + "</section>\n";
}

namespace {

/// A bar of coloured shares of a whole, and its legend.
class Breakdown {
 public:
  explicit Breakdown(std::string_view title)
      : bar_(fmt::format("<svg class=\"breakdown\" viewBox=\"0 0 1000 28\" "
                         "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
                         title)) {}

  /// `colour`: of page.css, a part's name. `length`: what the share is of the whole; none: 0.
  void add(std::string_view colour, std::string_view text, double share, Nanos length = {}) {
    if (!std::isfinite(share) || share <= 0) return;
    bar_ += fmt::format(
        "<rect class=\"p-{}\" x=\"{:.2f}\" y=\"0\" width=\"{:.2f}\" height=\"28\"><title>{} {}"
        "</title></rect>",
        colour, x_ * 1000, std::max(share * 1000 - 1.5, 0.5), text, format_percent(share));
    x_ += share;
    if (share < 0.001) return;
    legend_ += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"p-{}\" "
        "width=\"10\" height=\"10\"/></svg>{} <b>{}</b>",
        colour, text, format_percent(share));
    if (length.count() > 0) {
      legend_ += fmt::format(" <span class=\"muted\">{}</span>", format_duration(length));
    }
    legend_ += "</li>";
  }
  std::string html() const { return bar_ + "</svg>\n<ul class=\"legend\">" + legend_ + "</ul>\n"; }

 private:
  std::string bar_, legend_;
  double x_ = 0;
};

}  // namespace

std::string devices_html(const Run& run) {
  if (run.devices.empty()) return "";
  std::string out =
      "<section id=\"devices\"><h2>What the device did</h2>\n<p class=\"muted\">Of the time that "
      "was recorded: what it worked on, and for what it waited.</p>\n";
  static constexpr std::array<std::string_view, model::kIdleCauses> kColours = {
      "other", "backward", "sync", "h2d", "optimizer", "input_wait"};
  for (const model::DeviceUse& use : run.devices) {
    Breakdown breakdown(fmt::format("What device {} did", use.sum.device));
    breakdown.add("compute", "kernels", use.share(use.sum.compute));
    breakdown.add("communication", "nothing but communication",
                  use.share(use.sum.exposed_communication));
    breakdown.add("checkpoint", "nothing but copies", use.share(use.sum.exposed_copies));
    for (size_t i = 0; i < model::kIdleCauses; ++i) {
      const auto cause = static_cast<model::IdleCause>(i);
      breakdown.add(kColours[i], fmt::format("waits for {}", label(cause)), use.idle(cause));
    }
    out += fmt::format("<h3>GPU {}: busy {} of {} recorded</h3>\n", use.sum.device,
                       format_percent(use.share(use.sum.busy)), format_duration(use.recorded)) +
           breakdown.html();
  }
  return out + "</section>\n";
}

std::string steps_html(const Run& run) {
  const model::StepSummary& s = run.steps.summary;
  std::string out = "<section id=\"steps\"><h2>Steps</h2>\n";
  if (s.count == 0 || s.median.count() <= 0) {
    return out +
           "<p class=\"muted\">No steps were recognised in this job; what is said here was seen "
           "from outside.</p></section>\n";
  }
  const Nanos mean = s.mean.count() > 0 ? s.mean : s.median;
  out += "<dl class=\"numbers\">";
  out += number(format_duration(s.median), "median step");
  out += number(format_duration(s.p95), "95 % are faster");
  out += number(format_number(1 / to_s(mean)), "steps per second");
  if (s.samples_per_s > 0) out += number(format_number(s.samples_per_s), "samples per second");
  out += number(fmt::format("{}", s.count), fmt::format("steps, {} of them warm-up", s.warmup));
  out += "</dl>\n";
  Breakdown breakdown("Breakdown of the median step");
  for (size_t i = 0; i < s.breakdown.size(); ++i) {
    const auto part = static_cast<model::Part>(i);
    breakdown.add(name(part), label(part), s.breakdown[i],
                  nanos(s.breakdown[i] * static_cast<double>(s.median.count())));
  }
  out += "<h3>Where the median step goes</h3>\n" + breakdown.html();
  for (const model::SpeedChange& c : run.steps.changes) {
    out += fmt::format(
        "<p class=\"change\">From step <b>{}</b> on, {} after the start, a step takes <b>{}</b> "
        "instead of {}.</p>\n",
        c.index, since_begin(run, c.at), format_duration(c.after), format_duration(c.before));
  }
  if (run.steps.drift) {
    out += fmt::format(
        "<p class=\"change\">Steps drift from {} at the start to <b>{}</b> at the end.</p>\n",
        format_duration(run.steps.drift->first), format_duration(run.steps.drift->last));
  }
  out += fmt::format("<p class=\"muted\">Steps were {}.</p>\n", label(run.steps.source));
  return out +
         "<div id=\"step-chart\" class=\"chart tall\"></div>\n"
         "<div id=\"part-chart\" class=\"chart\"></div>\n</section>\n";
}

std::string comparison_html(const model::Comparison& c) {
  std::string out = "<section id=\"compare\"><h2>Compared with an earlier run</h2>\n";
  const std::string headline = c.headline.empty() ? "The runs are compared below." : c.headline;
  out += "<p class=\"headline\">" + html_text(headline) + "</p>\n<dl class=\"numbers\">";
  out += number(c.old_steps > 0 ? ms_text(c.old_median_ms) : "–",
                fmt::format("old, {} steps", c.old_steps));
  out += number(c.new_steps > 0 ? ms_text(c.new_median_ms) : "–",
                fmt::format("new, {} steps", c.new_steps));
  if (c.verdict != "unknown") {
    out += number(fmt::format("{:.2f}", c.ratio),
                  fmt::format("new to old step time, 95 %: {:.2f} to {:.2f}", c.ratio_interval.low,
                              c.ratio_interval.high));
  }
  out += "</dl>\n<p class=\"muted\">old: <code>" + html_text(c.old_name) +
         "</code><br>new: <code>" + html_text(c.new_name) + "</code></p>\n";
  if (!c.changes.empty()) {
    out +=
        "<h3>What changed</h3><div class=\"scroll\"><table><thead><tr><th>What</th><th>Before</th>"
        "<th>After</th><th class=\"n\">Share per step</th></tr></thead><tbody>\n";
    for (const model::Change& change : c.changes) {
      out += fmt::format(
          "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>\n",
          html_text(change.what), html_text(change.before), html_text(change.after),
          change.share_ms ? signed_ms(*change.share_ms) : "");
    }
    out += fmt::format(
        "<tr><td>not explained by these</td><td></td><td></td><td class=\"n\">{}</td></tr>\n"
        "</tbody></table></div>\n",
        signed_ms(c.unexplained_ms));
  }
  if (!c.parts.empty()) {
    out +=
        "<h3>Where the time went</h3><div class=\"scroll\"><table><thead><tr><th>Part</th>"
        "<th class=\"n\">Old</th><th class=\"n\">New</th><th class=\"n\">Difference</th></tr>"
        "</thead><tbody>\n";
    for (const model::PartChange& p : c.parts) {
      out += fmt::format(
          "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
          "</tr>\n",
          label(p.part), ms_text(p.old_ms), ms_text(p.new_ms), signed_ms(p.new_ms - p.old_ms));
    }
    out += "</tbody></table></div>\n";
  }
  const auto list = [&](std::string_view title, const std::vector<Finding>& findings) {
    if (findings.empty()) return;
    out += fmt::format("<h3>{}</h3><ul>", title);
    for (const Finding& f : findings) {
      out += "<li>" + html_text(f.title) + " <code>" + html_text(f.id) + "</code></li>";
    }
    out += "</ul>\n";
  };
  list("Findings only in the new run", c.appeared);
  list("Findings that are gone", c.vanished);
  return out + "</section>\n";
}

std::string details_html(const Run& run) {
  std::string out = "<section id=\"details\"><h2>Details</h2>\n" + processes_html(run);
  if (!run.info.empty()) {
    out += fmt::format(
        "<details><summary>Facts about the machine and the job <span class=\"count\">{}</span>"
        "</summary><div class=\"scroll\"><table class=\"facts\"><tbody>\n",
        run.info.size());
    size_t count = 0;
    for (const auto& [key, value] : run.info) {
      if (++count > kMostRows) break;
      out += row(key, std::string_view(value).substr(0, kMostText));
    }
    out += "</tbody></table></div></details>\n";
  }
  if (!run.missing.empty()) {
    out += fmt::format(
        "<details open><summary>Not measured <span class=\"count\">{}</span></summary>"
        "<div class=\"scroll\"><table><thead><tr><th>What</th><th>Why</th><th>How to allow it</th>"
        "</tr></thead><tbody>\n",
        run.missing.size());
    for (size_t i = 0; i < run.missing.size() && i < kMostRows; ++i) {
      const model::Missing& m = run.missing[i];
      out += fmt::format("<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                         html_text(m.signal), html_text(m.reason), html_text(m.hint));
    }
    out += "</tbody></table></div></details>\n";
  }
  return out + "</section>\n";
}

}  // namespace flatout::report

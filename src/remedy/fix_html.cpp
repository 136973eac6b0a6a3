#include "remedy/fix_html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "remedy/fix_file.h"
#include "remedy/fix_words.h"
#include "report/html_page.h"
#include "report/html_parts.h"

namespace flatout::remedy {
namespace {

using report::html_text;

constexpr int kWidth = 1000, kRow = 22, kLabel = 130, kRight = 40, kAxis = 26;

std::string ms(double seconds) { return format_number(1e3 * seconds) + " ms"; }

/// The runs of one comparison, a row each: the middle half of the steps as a box, nine tenths as a
/// line, the median as a stroke.
class Picture {
 public:
  explicit Picture(const Attempt& attempt) {
    for (const auto* runs : {&attempt.a_seconds, &attempt.b_seconds}) {
      for (const std::vector<double>& run : *runs) {
        if (run.empty()) continue;
        rows_.push_back({runs == &attempt.b_seconds, run});
        most_ = std::max(most_, quantile(run, 0.95));
      }
    }
  }
  std::string svg() const {
    if (rows_.empty() || most_ <= 0) return "";
    const auto height = static_cast<int>(rows_.size()) * kRow + kAxis;
    std::string out = fmt::format(
        "<svg class=\"steps\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Step times of the "
        "runs "
        "without and with it\">\n",
        kWidth, height);
    for (int i = 0; i <= 4; ++i) {
      const double at = most_ * 1.05 * i / 4;
      out += fmt::format(
          "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1}\"/>"
          "<text class=\"tick\" x=\"{0:.1f}\" y=\"{2}\">{3}</text>\n",
          x(at), height - kAxis, height - 8, html_text(ms(at)));
    }
    int y = 0;
    for (const Row& row : rows_) {
      const double low = quantile(row.seconds, 0.05), high = quantile(row.seconds, 0.95);
      const double first = quantile(row.seconds, 0.25), third = quantile(row.seconds, 0.75);
      const double middle = median(row.seconds);
      out += fmt::format(
          "<g class=\"{}\"><title>{}: median {}, half of the steps {} to {}, {} steps</title>"
          "<text class=\"label\" x=\"{}\" y=\"{}\">{}</text>",
          row.with ? "with" : "without", row.with ? "with it" : "without", html_text(ms(middle)),
          html_text(ms(first)), html_text(ms(third)), row.seconds.size(), kLabel - 10, y + kRow - 7,
          row.with ? "with it" : "without");
      out += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2}\" y2=\"{2}\"/>"
          "<rect x=\"{3:.1f}\" width=\"{4:.1f}\" y=\"{5}\" height=\"{6}\"/>"
          "<line class=\"median\" x1=\"{7:.1f}\" x2=\"{7:.1f}\" y1=\"{5}\" y2=\"{8}\"/></g>\n",
          x(low), x(high), y + kRow / 2, x(first), std::max(2.0, x(third) - x(first)), y + 4,
          kRow - 8, x(middle), y + kRow - 4);
      y += kRow;
    }
    return out + "</svg>\n";
  }

 private:
  struct Row {
    bool with;
    std::vector<double> seconds;
  };
  double x(double seconds) const {
    return kLabel + seconds / (most_ * 1.05) * (kWidth - kLabel - kRight);
  }
  static double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  }

  std::vector<Row> rows_;
  double most_ = 0;
};

std::string row(std::string_view key, std::string_view value) {
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", key, html_text(value));
}

std::string block(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + html_text(line);
  return fmt::format("<h3>{}</h3><pre>{}</pre>\n", title, text);
}

std::string section(const Outcome& outcome, const Attempt& attempt) {
  const Remedy& remedy = *attempt.candidate.remedy;
  std::string out = fmt::format("<section class=\"{}\"><h2>{}: {}</h2>\n<table>\n",
                                attempt.kept ? "kept" : "left", html_text(remedy.id),
                                html_text(verdict_words(attempt)));
  out += row("what", attempt.what);
  if (!attempt.candidate.finding.empty()) out += row("answers", attempt.candidate.finding);
  if (attempt.candidate.predicted)
    out += row("predicted", fmt::format("{:.2f}x", *attempt.candidate.predicted));
  out += row("measured (95 %)", measured(attempt.decision));
  out += row("class", fmt::format("{}; losses: {}", name(remedy.effect), name(attempt.losses)));
  if (!remedy.risk.empty()) out += row("risk", remedy.risk);
  if (!attempt.note.empty()) out += row("note", attempt.note);
  const Attempt* const later = attempt.kept ? superseded_by(outcome, attempt) : nullptr;
  if (later != nullptr) out += row("by hand", "see " + std::string(later->candidate.remedy->id));
  out += "</table>\n" + Picture(attempt).svg();
  if (attempt.kept && later == nullptr) {
    out += block("shell, and a batch script before srun", shell_lines(attempt));
    out += block("Dockerfile", dockerfile_lines(attempt.setting));
    if (!attempt.code.empty()) {
      const auto& where = attempt.candidate.where;
      out += block(where ? fmt::format("code, at {}:{}", html_text(where->file), where->line)
                         : std::string("code"),
                   {attempt.code});
    }
  }
  return out + "</section>\n";
}

}  // namespace

std::string fix_page(const std::vector<std::string>& command, const Outcome& outcome,
                     const std::string& fix_path) {
  const TrialRun& base = outcome.baseline;
  std::string facts = fmt::format("<li>{} a step as it is</li><li>{}</li>",
                                  html_text(ms(mean(base.seconds))), html_text(base.verdict));
  if (outcome.together)
    facts +=
        fmt::format("<li>{} with all that is kept</li>", html_text(measured(*outcome.together)));
  std::string body =
      report::top_html(shell_command(command), facts) + "<main class=\"wrap\" id=\"fix\">\n";
  body += fmt::format("<h1>{}</h1>\n",
                      !outcome.tunings.empty()  ? "Nothing is wrong with it: nothing is changed"
                      : outcome.nothing_tried() ? "Nothing was tried"
                      : outcome.kept.empty()    ? nothing_kept(outcome)
                                                : "Kept: " + html_text(joined(outcome.kept)));
  if (!outcome.kept.empty() && !fix_path.empty()) {
    body += block("to run with it", {fmt::format("flatout run --with {} -- {}",
                                                 shell_word(fix_path), shell_command(command))});
  }
  for (const Attempt& attempt : outcome.attempts) body += section(outcome, attempt);
  if (const std::string why = nothing_tried(outcome); !why.empty()) {
    body += "<p>" + html_text(why) + "</p>\n";
  } else if (!outcome.not_tried.empty()) {
    body += fmt::format("<p>Not tried, for want of time: {}.</p>\n",
                        html_text(joined(outcome.not_tried)));
  }
  if (const auto left = unanswered(outcome); !left.empty()) {
    body += "<p>Left, and by hand only, since no remedy could be tried:</p>\n<ul>\n";
    for (const model::Finding* finding : left)
      body += "<li>" + html_text(unanswered_words(*finding)) + "</li>\n";
    body += "</ul>\n";
  }
  if (outcome.stopped) body += "<p>Interrupted: this is what was known by then.</p>\n";
  if (!outcome.stopped_by.empty())
    body += fmt::format("<p>Ended early: {}</p>\n", html_text(outcome.stopped_by));
  body += fmt::format(
      "</main>\n<footer class=\"wrap muted\">{} boxes hold half of a run's steps, lines nine "
      "tenths. "
      "This file loads nothing and sends nothing.</footer>\n",
      kFixPageMark);
  return report::make_page(shell_command(command) + ": flatout fix",
                           {report::asset_page_css(), report::asset_fix_css()}, {}, body)
      .html;
}

}  // namespace flatout::remedy

#include "report/advice_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace flatout::report {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kLeastWidth = 40;

class Page {
 public:
  explicit Page(const TextOptions& options) : options_(options) {
    options_.width = std::max(options_.width, kLeastWidth);
  }
  // A paragraph behind a lead, its further lines indented as far.
  void paragraph(const Span& lead, std::string_view text, Paint paint = Paint::kPlain) {
    const size_t indent = display_width(lead.text);
    bool first = true;
    for (const std::string& part : wrap(clean(text, options_), options_.width - indent)) {
      text_ +=
          render({first ? lead : Span{std::string(indent, ' ')}, {part, paint}}, options_.color) +
          "\n";
      first = false;
    }
  }
  void line(const Line& line) { text_ += render(line, options_.color) + "\n"; }
  void blank() { text_ += "\n"; }
  std::string fit(std::string_view text, size_t width) const {
    return report::fit(clean(text, options_), width, options_.unicode);
  }
  // A mark for each colour, so that the colour says nothing alone.
  Span mark(Paint paint) const {
    const bool unicode = options_.unicode;
    switch (paint) {
      case Paint::kBad:
        return {unicode ? "✗ " : "X ", paint};
      case Paint::kWarn:
        return {unicode ? "▲ " : "! ", paint};
      case Paint::kPlain:
        return {"? ", Paint::kWarn};
      default:
        return {unicode ? "✓ " : "+ ", paint};
    }
  }
  size_t width() const { return options_.width; }
  std::string take() { return std::move(text_); }

 private:
  TextOptions options_;
  std::string text_;
};

std::string_view sureness(double sure) {
  return sure >= 0.9 ? "sure" : sure >= 0.75 ? "likely" : "the usual cause, not certain";
}

std::string verdict_text(const CheckUp& check_up) {
  const size_t all = check_up.problems.size();
  if (check_up.about_flatout) {
    return all == 0 ? "All that Flatout measures can be measured here."
                    : fmt::format("{} of the things that Flatout measures cannot be measured here.",
                                  all);
  }
  if (all == 0) return "Nothing here will hold a job up.";
  const auto stops = std::count_if(check_up.problems.begin(), check_up.problems.end(),
                                   [](const Problem& p) { return p.fails; });
  return stops == 0 ? "Nothing here will stop a job."
                    : fmt::format("{} of {} will stop a job: exit code 3.", stops, all);
}

}  // namespace

std::string render_explanation(const Explanation& e, const TextOptions& options) {
  Page page(options);
  const bool known = e.kind != "unknown" && e.kind != "none";
  // Where nothing shows, that is no proof: only a log that says it ended well is marked as good.
  const bool nothing = e.kind == "none" || (e.kind == "unknown" && e.seen.empty());
  page.paragraph(page.mark(e.well    ? Paint::kGood
                           : nothing ? Paint::kPlain
                                     : Paint::kBad),
                 e.text, Paint::kBold);
  if (known) {
    page.line({{"  " + e.kind + (e.finding.empty() ? "" : "  " + e.finding), Paint::kWarn},
               {fmt::format("  {} ({})", sureness(e.sure), format_percent(e.sure)), Paint::kDim}});
  }
  for (const SeenLine& seen : e.seen) {
    const std::string lead = fmt::format("    line {}: ", seen.number);
    page.line({{lead, Paint::kDim},
               {page.fit(seen.text, page.width() - std::min(lead.size(), page.width() - 10)),
                Paint::kAccent}});
  }
  for (const std::string& now : e.now) page.paragraph({"    now "}, now);
  for (const Holder& holder : e.holders) {
    page.line({{fmt::format("  {:>10}  ",
                            holder.bytes ? format_bytes(static_cast<double>(*holder.bytes)) : "-"),
                Paint::kBold},
               {page.fit(holder.what, page.width() - 14)}});
  }
  for (const Suggestion& s : e.advice) page.paragraph({"    try ", Paint::kGood}, s.text);
  if (!e.also.empty()) {
    std::string also;
    for (const std::string& kind : e.also) also += (also.empty() ? "" : ", ") + kind;
    page.paragraph({"    also seen ", Paint::kDim}, also, Paint::kDim);
  }
  return page.take();
}

std::string render_check_up(const CheckUp& check_up, const TextOptions& options) {
  Page page(options);
  for (const Problem& p : check_up.problems) {
    page.paragraph(page.mark(p.fails ? Paint::kBad : Paint::kWarn), p.text, Paint::kBold);
    Line id{{"  " + p.id, Paint::kWarn}};
    if (p.fails) id.push_back({"  will stop a job", Paint::kBad});
    page.line(id);
    if (!p.hint.empty()) page.paragraph({"    try ", Paint::kGood}, p.hint);
  }
  if (!check_up.problems.empty()) page.blank();
  page.paragraph(page.mark(!check_up.ok()              ? Paint::kBad
                           : check_up.problems.empty() ? Paint::kGood
                                                       : Paint::kWarn),
                 verdict_text(check_up), Paint::kBold);
  page.blank();
  for (const auto& [key, value] : check_up.machine) {
    page.line({{fmt::format("  {:<24}", clean(key, options)), Paint::kDim},
               {page.fit(value, page.width() - std::min<size_t>(26, page.width()))}});
  }
  return page.take();
}

}  // namespace flatout::report

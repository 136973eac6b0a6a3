#include "report/memory_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/size_text.h"
#include "base/text.h"
#include "report/html_page.h"
#include "report/html_parts.h"

namespace flatout::report {
namespace {

using model::MemoryFailure;
using model::MemoryHistory;

constexpr int kWidth = 1000, kHeight = 320;
constexpr size_t kColours = 12;
constexpr size_t kMostFailures = 20;

// Coordinates of the drawing: columns to the right, bytes upward.
class Scale {
 public:
  explicit Scale(const MemoryHistory& h)
      : columns_(h.bands.empty() ? 1 : h.bands[0].bytes.size()),
        most_(static_cast<double>(std::max({h.peak, h.card, uint64_t{1}})) * 1.04) {}
  double x(size_t column) const {
    return static_cast<double>(column) * kWidth / static_cast<double>(columns_);
  }
  double y(uint64_t bytes) const { return kHeight - static_cast<double>(bytes) * kHeight / most_; }
  size_t columns() const { return columns_; }

 private:
  size_t columns_;
  double most_;
};

// Each column is a flat piece: memory is taken and given in steps.
std::string area(const Scale& scale, const std::vector<uint64_t>& below,
                 const std::vector<uint64_t>& above) {
  std::string path = "M";
  for (size_t c = 0; c < scale.columns(); ++c)
    path += fmt::format("{:.1f} {:.1f} {:.1f} {:.1f} ", scale.x(c), scale.y(above[c]),
                        scale.x(c + 1), scale.y(above[c]));
  for (size_t c = scale.columns(); c-- > 0;)
    path += fmt::format("{:.1f} {:.1f} {:.1f} {:.1f} ", scale.x(c + 1), scale.y(below[c]),
                        scale.x(c), scale.y(below[c]));
  return path + "Z";
}

std::string upright(double x, std::string_view css, std::string_view title) {
  return fmt::format(
      "<g><title>{}</title><line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"0\" y2=\"{}\" "
      "class=\"{}\"/></g>\n",
      title, x, x, kHeight, css);
}

std::string failure_text(const MemoryFailure& f) {
  return fmt::format("{} more were refused when {} were live{}{}", size_text(f.bytes),
                     size_text(f.live), f.label.empty() ? "" : ", at ", html_text(f.label));
}

std::string picture(const MemoryHistory& h) {
  const Scale scale(h);
  std::string out = fmt::format(
      "<svg class=\"memory\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"Live memory over the job's requests, by call site\">\n",
      kWidth, kHeight);
  std::vector<uint64_t> below(scale.columns(), 0);
  for (size_t band = 0; band < h.bands.size(); ++band) {
    std::vector<uint64_t> above = below;
    for (size_t c = 0; c < above.size(); ++c) above[c] += h.bands[band].bytes[c];
    out +=
        fmt::format("<g><title>{}: {} at the peak</title><path class=\"band{}\" d=\"{}\"/></g>\n",
                    html_text(h.bands[band].label), size_text(h.bands[band].at_peak),
                    band % kColours, area(scale, below, above));
    below = std::move(above);
  }
  // Lines closer than some pixels would be a wall.
  if (h.steps.size() <= 100)
    for (const size_t step : h.steps) out += upright(scale.x(step), "step", "a step begins");
  out +=
      upright(scale.x(h.peak_column) + 0.5, "peak", fmt::format("the peak: {}", size_text(h.peak)));
  if (h.card > 0)
    out += fmt::format(
        "<g><title>the card's {}</title><line x1=\"0\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" "
        "class=\"card\"/></g>\n",
        size_text(h.card), kWidth, scale.y(h.card), scale.y(h.card));
  if (h.beyond_the_card)
    out += upright(scale.x(*h.beyond_the_card), "failure", "more is live than the card has");
  // One line for those of a column: there may be millions.
  std::optional<size_t> before;
  for (const MemoryFailure& f : h.failures) {
    if (f.column == before) continue;
    before = f.column;
    out += upright(scale.x(f.column) + 0.5, "failure", failure_text(f));
  }
  return out + "</svg>\n";
}

std::string moments(const MemoryHistory& h) {
  std::string out = fmt::format(
      "<li>{} operations, from left to right</li><li>at most <b>{}</b> live at a time</li>",
      h.operations, size_text(h.peak));
  if (h.card > 0)
    out += fmt::format(
        "<li>{}</li>",
        h.beyond_the_card
            ? fmt::format("<b class=\"bad\">more than a card of {} has</b>: no allocator fits",
                          size_text(h.card))
            : fmt::format("a card of {} has as much", size_text(h.card)));
  for (size_t i = 0; i < std::min(h.failures.size(), kMostFailures); ++i)
    out += fmt::format("<li class=\"bad\">{}</li>", failure_text(h.failures[i]));
  if (h.failures.size() > kMostFailures)
    out += fmt::format("<li class=\"bad\">and {} more refusals</li>",
                       h.failures.size() - kMostFailures);
  return out;
}

std::string table(const MemoryHistory& h) {
  std::string out =
      "<table><thead><tr><th></th><th>who asked</th><th>at the peak</th><th>of it</th><th>its own "
      "peak"
      "</th></tr></thead><tbody>\n";
  for (size_t band = 0; band < h.bands.size(); ++band) {
    const model::MemoryBand& b = h.bands[band];
    const double share =
        h.peak > 0 ? static_cast<double>(b.at_peak) / static_cast<double>(h.peak) : 0;
    out += fmt::format(
        "<tr><td><svg class=\"key\" viewBox=\"0 0 1 1\"><rect class=\"band{}\" width=\"1\" "
        "height=\"1\"/></svg></td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        band % kColours, html_text(b.label), size_text(b.at_peak), format_percent(share),
        size_text(b.peak));
  }
  return out + "</tbody></table>\n";
}

}  // namespace

std::string render_memory_html(const std::vector<MemoryHistory>& histories) {
  std::string body = "<main class=\"wrap wide\">\n";
  for (const MemoryHistory& h : histories) {
    body += fmt::format("<section><h2>{}</h2>\n<ul class=\"moments\">{}</ul>\n", html_text(h.name),
                        moments(h));
    body += picture(h) + table(h) + "</section>\n";
  }
  body +=
      "</main>\n<footer class=\"wrap muted\">Made by flatout; live memory as it was asked for, "
      "before any allocator's "
      "rounding. This file loads nothing and sends nothing.</footer>\n";
  return make_page(fmt::format("{}: device memory", histories.front().name),
                   {asset_page_css(), asset_memory_css()}, {}, body)
      .html;
}

}  // namespace flatout::report

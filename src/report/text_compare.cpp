// The terminal block of `flatout compare`.
#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "report/text.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Comparison;

std::string ms(double value) { return format_duration(nanos(value * 1e6)); }
std::string signed_ms(double value) {
  return (value < 0 ? "-" : "+") + format_duration(nanos(std::fabs(value) * 1e6));
}

class Out {
 public:
  explicit Out(const TextOptions& options) : options_(options) {}
  void line(const Line& line) { text_ += render(line, options_.color) + "\n"; }
  void blank() { text_ += "\n"; }
  std::string clean(std::string_view s) const { return report::clean(s, options_); }
  std::string fit(std::string_view s, size_t width) const {
    return report::fit(s, width, options_.unicode);
  }
  const TextOptions& options() const { return options_; }
  std::string take() { return std::move(text_); }

 private:
  TextOptions options_;
  std::string text_;
};

std::string headline(const Comparison& c) {
  if (!c.headline.empty()) return c.headline;
  if (c.verdict == "unknown") return "Too few steps to compare.";
  if (c.verdict == "no_difference") return "No difference in speed that could be measured.";
  return fmt::format("The new run is {}: a step takes {} instead of {}.", c.verdict,
                     ms(c.new_median_ms), ms(c.old_median_ms));
}

void findings(Out& out, std::string_view label, const std::vector<model::Finding>& list,
              Paint paint) {
  for (const model::Finding& f : list) {
    Line line{{fmt::format("  {:<8}", label), Paint::kDim}, {out.clean(f.id), paint}};
    const size_t used = display_width(line) + 2;
    if (used < out.options().width) {
      line.push_back({"  " + out.fit(out.clean(f.title), out.options().width - used)});
    }
    out.line(line);
    label = "";
  }
}

}  // namespace

std::string render_comparison(const Comparison& c, const TextOptions& given) {
  TextOptions options = given;
  options.width = std::max<size_t>(options.width, 40);
  Out out(options);
  const bool slower = c.verdict == "slower";
  const bool faster = c.verdict == "faster";
  const Paint paint = slower ? Paint::kBad : faster ? Paint::kGood : Paint::kPlain;
  const char* mark = !options.unicode ? (slower   ? "! "
                                         : faster ? "+ "
                                                  : "= ")
                     : slower         ? "▲ "
                     : faster         ? "▼ "
                                      : "= ";
  bool first = true;
  for (const std::string& text : wrap(out.clean(headline(c)), options.width - 2)) {
    out.line({{first ? mark : "  ", paint}, {text, Paint::kBold}});
    first = false;
  }
  out.blank();
  out.line({{"  old     ", Paint::kDim},
            {fmt::format("{:>8}  {:>6} steps  ", ms(c.old_median_ms), c.old_steps)},
            {fit_end(out.clean(c.old_name), options.width - 36, options.unicode), Paint::kDim}});
  out.line({{"  new     ", Paint::kDim},
            {fmt::format("{:>8}  {:>6} steps  ", ms(c.new_median_ms), c.new_steps)},
            {fit_end(out.clean(c.new_name), options.width - 36, options.unicode), Paint::kDim}});
  if (c.verdict != "unknown") {
    out.line(
        {{"  ratio   ", Paint::kDim},
         {fmt::format("{:.3f} new/old step time", c.ratio), paint},
         {fmt::format("  (95 %: {:.3f} to {:.3f})", c.ratio_interval.low, c.ratio_interval.high),
          Paint::kDim}});
  }
  if (!c.changes.empty()) {
    out.blank();
    out.line({{"  what changed", Paint::kBold}});
    for (const model::Change& change : c.changes) {
      const std::string share = change.share_ms ? signed_ms(*change.share_ms) : "";
      const std::string before = change.before.empty() ? "(none)" : out.clean(change.before);
      const std::string after = change.after.empty() ? "(none)" : out.clean(change.after);
      Line line{{fmt::format("  {:>10}  ", share), change.share_ms ? Paint::kWarn : Paint::kDim},
                {out.clean(change.what) + "  "}};
      const size_t used = display_width(line);
      const size_t room = options.width > used + 20 ? options.width - used : 20;
      const char* arrow = options.unicode ? " → " : " -> ";
      const size_t half = (room - 4) / 2;
      line.push_back({out.fit(before, half) + arrow + out.fit(after, half), Paint::kAccent});
      out.line(line);
    }
    if (std::fabs(c.unexplained_ms) > 0 && (slower || faster)) {
      out.line({{fmt::format("  {:>10}  ", signed_ms(c.unexplained_ms)), Paint::kDim},
                {"not explained by these"}});
    }
  }
  bool titled = false;
  for (const model::PartChange& p : c.parts) {
    const double difference = p.new_ms - p.old_ms;
    if (std::fabs(difference) < 0.005 * std::max(c.old_median_ms, c.new_median_ms)) continue;
    if (!titled) {
      out.blank();
      out.line({{"  where the time went", Paint::kBold}});
      titled = true;
    }
    out.line({{fmt::format("  {:>10}  ", signed_ms(difference)),
               difference > 0 ? Paint::kWarn : Paint::kGood},
              {std::string(label(p.part))},
              {fmt::format("  {} {} {}", ms(p.old_ms), options.unicode ? "→" : "->", ms(p.new_ms)),
               Paint::kDim}});
  }
  if (!c.appeared.empty() || !c.vanished.empty()) out.blank();
  findings(out, "new", c.appeared, Paint::kWarn);
  findings(out, "gone", c.vanished, Paint::kGood);
  return out.take();
}

}  // namespace flatout::report

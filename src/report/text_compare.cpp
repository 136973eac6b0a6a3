// The terminal block of `flatout compare`.
#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "report/text.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Comparison;

constexpr size_t kMostReasons = 3, kMostChanges = 8;  // on one screen; --json has all

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
    if (f.where) {
      const std::string where = "at " + out.clean(where_text(*f.where));
      out.line({{"          "},
                {fit_end(where, out.options().width - 10, out.options().unicode), Paint::kAccent}});
    }
  }
}

void more(Out& out, size_t all, size_t shown) {
  if (all > shown) {
    out.line({{fmt::format("              {} more in --json", all - shown), Paint::kDim}});
  }
}

void side(Out& out, std::string_view label, double median_ms, const Interval& interval,
          int64_t steps, const std::string& name) {
  std::string numbers = fmt::format("{:>8}  {:>6} steps  ", steps > 0 ? ms(median_ms) : "-", steps);
  if (interval.high > 0) {
    numbers += fmt::format("(95 %: {} to {})  ", ms(interval.low), ms(interval.high));
  }
  Line line{{fmt::format("  {:<8}", label), Paint::kDim}, {numbers}};
  const size_t used = display_width(line);
  if (used + 10 < out.options().width) {
    line.push_back(
        {fit_end(out.clean(name), out.options().width - used, out.options().unicode), Paint::kDim});
  }
  out.line(line);
}

/// What went where, and why.
void parts(Out& out, const Comparison& c) {
  const char* arrow = out.options().unicode ? "→" : "->";
  bool titled = false;
  for (const model::PartChange& p : c.parts) {
    const double difference = p.new_ms - p.old_ms;
    if (std::fabs(difference) < 0.005 * std::max(c.old_median_ms, c.new_median_ms)) continue;
    if (!titled) {
      out.blank();
      out.line({{"  where the time went", Paint::kBold}});
      titled = true;
    }
    std::string numbers = fmt::format("  {} {} {}", ms(p.old_ms), arrow, ms(p.new_ms));
    if (p.moved_ms.low != p.moved_ms.high) {
      numbers +=
          fmt::format("  (95 %: {} to {})", signed_ms(p.moved_ms.low), signed_ms(p.moved_ms.high));
    }
    out.line({{fmt::format("  {:>10}  ", signed_ms(difference)),
               difference > 0 ? Paint::kWarn : Paint::kGood},
              {std::string(label(p.part))},
              {out.fit(numbers, out.options().width - 14 - label(p.part).size()), Paint::kDim}});
    for (size_t i = 0; i < p.reasons.size() && i < kMostReasons; ++i) {
      const model::Reason& r = p.reasons[i];
      const std::string share = r.share_ms ? signed_ms(*r.share_ms) + "  " : "";
      out.line({{"              "},
                {share, Paint::kWarn},
                {out.fit(out.clean(r.text), out.options().width - 14 - display_width(share)),
                 r.finding ? Paint::kBold : Paint::kAccent}});
    }
    more(out, p.reasons.size(), kMostReasons);
  }
}

bool is_a_reason(const Comparison& c, const model::Change& change) {
  for (const model::PartChange& p : c.parts) {
    for (const model::Reason& r : p.reasons) {
      if (!r.finding && r.what == change.what) return true;
    }
  }
  return false;
}

/// What changed besides the reasons.
void changes(Out& out, const Comparison& c) {
  const std::string arrow = out.options().unicode ? " → " : " -> ";
  size_t all = 0;
  for (const model::Change& change : c.changes) {
    if (is_a_reason(c, change)) continue;
    if (all++ == 0) {
      out.blank();
      out.line({{"  what changed", Paint::kBold}});
    }
    if (all > kMostChanges) continue;
    const std::string share = change.share_ms ? signed_ms(*change.share_ms) : "";
    const std::string before = change.before.empty() ? "(none)" : out.clean(change.before);
    const std::string after = change.after.empty() ? "(none)" : out.clean(change.after);
    Line line{{fmt::format("  {:>10}  ", share), change.share_ms ? Paint::kWarn : Paint::kDim},
              {out.clean(change.text.empty() ? change.what : change.text) + "  "}};
    const size_t used = display_width(line);
    const size_t room = out.options().width > used + 20 ? out.options().width - used : 20;
    const size_t half = (room - 4) / 2;
    line.push_back({out.fit(before, half) + arrow + out.fit(after, half), Paint::kAccent});
    out.line(line);
  }
  more(out, all, kMostChanges);
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
  side(out, "old", c.old_median_ms, c.old_interval, c.old_steps, c.old_name);
  side(out, "new", c.new_median_ms, c.new_interval, c.new_steps, c.new_name);
  if (c.rank)
    out.line(
        {{"  rank    ", Paint::kDim},
         {fmt::format("{} of both{}", *c.rank, c.rank_late ? ": it holds up the others" : "")}});
  if (c.verdict != "unknown") {
    const auto ratio = [&](std::string_view label, std::string_view of, double value,
                           const Interval& interval) {
      out.line(
          {{fmt::format("  {:<8}", label), Paint::kDim},
           {fmt::format("{:.3f} new/old {}", value, of), paint},
           {fmt::format("  (95 %: {:.3f} to {:.3f})", interval.low, interval.high), Paint::kDim}});
    };
    ratio("ratio", "median", c.ratio, c.ratio_interval);
    if (c.by_mean) ratio("", "mean", c.mean_ratio, c.mean_ratio_interval);
  }
  parts(out, c);
  changes(out, c);
  if (!c.appeared.empty() || !c.vanished.empty()) out.blank();
  findings(out, "new", c.appeared, Paint::kWarn);
  findings(out, "gone", c.vanished, Paint::kGood);
  return out.take();
}

}  // namespace flatout::report

#include "report/trace_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "report/trace_words.h"
#include "report/words.h"

namespace flatout::report {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kKernels = 5;
constexpr size_t kRows = 12;
constexpr size_t kOwners = 3;
constexpr size_t kWaits = 6;
constexpr size_t kPathPieces = 4;

class Page {
 public:
  explicit Page(const TextOptions& options) : options_(options) {
    options_.width = std::max<size_t>(options_.width, 40);
  }
  void line(const Line& line) { text_ += render(line, options_.color) + "\n"; }
  void blank() { text_ += "\n"; }
  std::string clean(std::string_view s) const { return report::clean(s, options_); }
  std::string fit(std::string_view s, size_t width) const {
    return report::fit(clean(s), width, options_.unicode);
  }
  // A label, a figure and what it is.
  void row(std::string_view label, std::string_view figure, std::string_view text) {
    line({{fmt::format("  {:<16}", label), Paint::kDim},
          {fmt::format("{:>9}", figure), Paint::kBold},
          {"  " + fit(text, options_.width - 29)}});
  }
  const TextOptions& options() const { return options_; }
  std::string take() { return std::move(text_); }

 private:
  TextOptions options_;
  std::string text_;
};

void verdict(Page& page, const TraceDiagnosis& diagnosis) {
  const bool found = !diagnosis.findings.empty(), unicode = page.options().unicode;
  const bool well = !found && diagnosis.verdict == "healthy" && diagnosis.judged;
  const char* mark = found ? (unicode ? "▲ " : "! ") : well ? (unicode ? "✓ " : "+ ") : "? ";
  const Paint paint = found ? Paint::kBad : well ? Paint::kGood : Paint::kWarn;
  bool first = true;
  for (const std::string& text : wrap(page.clean(diagnosis.headline), page.options().width - 2)) {
    page.line({{first ? mark : "  ", paint}, {text, Paint::kBold}});
    first = false;
  }
  for (const Finding& f : diagnosis.findings) {
    page.blank();
    std::string cost;
    if (f.cost_ms_per_step) cost = format_duration(nanos(*f.cost_ms_per_step * 1e6)) + " a step";
    if (f.gain) cost += (cost.empty() ? "" : ", ") + factor_text(*f.gain) + " faster without it";
    page.line({{"  " + page.clean(f.id), Paint::kWarn},
               {"  " + page.fit(f.title, page.options().width - f.id.size() - 4)}});
    if (!cost.empty()) page.line({{"    " + cost, Paint::kBold}});
    if (f.where) page.line({{"    at " + page.clean(where_text(*f.where)), Paint::kAccent}});
    // Folded, not cut: what stands at the end is what it is about.
    for (const Evidence& e : f.evidence) {
      std::string indent = "    ";
      for (const std::string& text : wrap(page.clean(e.text), page.options().width - 6)) {
        page.line({{indent + text, Paint::kDim}});
        indent = "      ";
      }
    }
    for (const Suggestion& r : f.remedies) {
      const char* label = "    try ";
      for (const std::string& text : wrap(page.clean(r.text), page.options().width - 8)) {
        page.line({{label, Paint::kGood}, {text}});
        label = "        ";
      }
    }
  }
}

void steps(Page& page, const TraceSummary& t) {
  if (t.steps.empty()) {
    if (t.host.input_wait > 0)
      page.row("input wait", share_text(t.host.input_wait, t.host.span), "of the time; no steps");
    return;
  }
  std::vector<int64_t> walls;
  int64_t sum = 0, input = 0;
  for (const TraceStepSummary& s : t.steps) {
    walls.push_back(s.wall);
    sum += s.wall;
    input += s.input_wait;
  }
  std::sort(walls.begin(), walls.end());
  page.row("steps", fmt::format("{}", walls.size()),
           fmt::format("median {}, longest {}{}", time_text(walls[walls.size() / 2]),
                       time_text(walls.back()),
                       t.steps_from == TraceStepSource::kOptimizer ? "; by the optimizer" : ""));
  page.row("input wait", share_text(input, sum), "of the steps' time");
}

void device(Page& page, const DeviceSummary& d) {
  const DeviceTimes& t = d.times;
  page.blank();
  page.line({{fmt::format("  device {}", d.device), Paint::kBold},
             {d.name.empty() ? "" : "  " + page.clean(d.name), Paint::kDim},
             {fmt::format("  {}", time_text(t.span)), Paint::kDim}});
  page.row("busy", share_text(t.busy, t.span),
           fmt::format("compute {}, communication {}, copies {}", share_text(t.compute, t.span),
                       share_text(t.communication, t.span), share_text(t.memory, t.span)));
  page.row(
      "idle", share_text(t.idle(), t.span),
      fmt::format("input {}, host {}, between kernels {}, other work {}, unknown {}",
                  share_text(d.idle.input_wait, t.span), share_text(d.idle.host_wait, t.span),
                  share_text(d.idle.kernel_wait, t.span),
                  share_text(d.idle.other - d.unknown, t.span), share_text(d.unknown, t.span)));
  if (d.idle.host_wait > 0) {
    page.row("host wait", share_text(d.idle.host_wait, t.span),
             fmt::format("launch-bound {}, synchronisation {}, in collectives {}",
                         share_text(d.short_wait, t.span), share_text(d.sync_wait, t.span),
                         share_text(d.collective_wait, t.span)));
  }
  if (t.communication > 0) {
    page.row("exposed comm.", share_text(t.exposed_communication(), t.span),
             fmt::format("{} of the communication overlaps compute",
                         share_text(t.overlap, t.communication)));
  }
  if (d.launch.count > 0) {
    page.row("launches", fmt::format("{}", d.launch.count),
             fmt::format("{} longer than what they launch",
                         share_text(static_cast<int64_t>(d.launch.shorter_than_launch),
                                    static_cast<int64_t>(d.launch.count))));
  }
  for (const HostBlame& h : d.host.slices) {
    if (h.time * 10 < d.host.time) break;
    page.row("host meanwhile", share_text(h.time, d.host.time), h.name);
  }
  for (size_t i = 0; i < d.kernels.size() && i < kKernels; ++i) {
    const KernelStat& k = d.kernels[i];
    page.row(i == 0 ? "kernels" : "", share_text(k.sum, t.span),
             fmt::format("{}x {}", k.count, k.name));
  }
  const auto owners = [&](std::string_view label, const std::vector<OwnerStat>& all) {
    for (size_t i = 0; i < all.size() && i < kOwners; ++i) {
      page.row(i == 0 ? label : "", share_text(all[i].time, d.owners.time),
               fmt::format("{}x {}", all[i].count, all[i].name));
    }
  };
  owners("for operators", d.owners.operators);
  owners("for modules", d.owners.modules);
}

// The chain that the step's length follows from, and what would be left of it.
void path(Page& page, const CriticalPath& p) {
  page.blank();
  page.line(
      {{"  critical path", Paint::kBold},
       {fmt::format("  {}  {}", page.clean(p.step.empty() ? "of a window from the middle" : p.step),
                    time_text(p.length)),
        Paint::kDim}});
  for (size_t i = 0; i < kPathParts; ++i) {
    if (p.parts[i] * 100 < p.length) continue;
    page.row("", share_text(p.parts[i], p.length), label(static_cast<PathPart>(i)));
  }
  size_t shown = 0;
  for (const CriticalPath::Piece& piece : p.pieces) {
    if (piece.time * 50 < p.length || ++shown > kPathPieces) break;
    page.row(shown == 1 ? "most of it" : "", share_text(piece.time, p.length), piece.name);
  }
  for (const CriticalPath::WhatIf& w : p.what_if)
    page.row("what if", time_text(w.length), what_if_text(w));
}

void damage(Page& page, const TraceSummary& t) {
  const TraceDamage& d = t.damage;
  std::string text = unrecorded_text(t);
  const auto say = [&](bool yes, std::string_view what) {
    if (!yes) return;
    if (!text.empty()) text += "; ";
    text += what;
  };
  say(d.cut_off, "the file is cut off");
  say(d.bad_events > 0, fmt::format("{} events could not be read", d.bad_events));
  say(d.bad_numbers > 0, fmt::format("{} numbers are none", d.bad_numbers));
  say(d.unpaired > 0, fmt::format("{} begins or ends stand alone", d.unpaired));
  say(d.dropped > 0, fmt::format("{} short host slices were left out", d.dropped));
  say(!d.text.empty(), d.text);
  if (!text.empty())
    page.line({{"  incomplete: ", Paint::kWarn}, {page.fit(text, page.options().width - 14)}});
}

void trace(Page& page, const TraceSummary& t, bool all_devices) {
  page.blank();
  std::string title =
      fit_end(page.clean(t.file), page.options().width > 50 ? page.options().width - 40 : 20,
              page.options().unicode);
  page.line({{title, Paint::kBold},
             {fmt::format("  {} events, {}{}", t.events, format_bytes(static_cast<double>(t.bytes)),
                          t.rank >= 0 ? fmt::format(", rank {}", t.rank) : ""),
              Paint::kDim}});
  damage(page, t);
  steps(page, t);
  if (t.devices.empty() && t.host.span > 0) {
    page.row("operators", share_text(t.host.operators, t.host.span),
             "of the time some thread is in one");
    if (t.host.collective_wait > 0)
      page.row("collectives", share_text(t.host.collective_wait, t.host.span),
               "of the time some thread is in one, and none in an operator");
    for (const HostBlame& h : t.host.training.slices) {
      if (h.time * 10 < t.host.training.time) break;
      page.row("otherwise", share_text(h.time, t.host.training.time), "of the rest in " + h.name);
    }
  }
  for (const DeviceSummary& d : t.devices) {
    device(page, d);
    if (!all_devices) break;
  }
  if (t.path) path(page, *t.path);
}

// Of many ranks a line each.
void ranks(Page& page, const std::vector<TraceSummary>& traces, const TraceDiagnosis& diagnosis) {
  const bool devices = std::any_of(traces.begin(), traces.end(),
                                   [](const TraceSummary& t) { return !t.devices.empty(); });
  const auto line = [&](Paint paint, std::string_view end, const auto&... cells) {
    page.line({{fmt::format("  {:>5} {:>10} {:>8} {:>8} {:>8} {:>8}", cells...), paint},
               {std::string(end), Paint::kWarn}});
  };
  page.blank();
  if (devices) {
    line(Paint::kDim, "", "rank", "device", "busy", "idle", "comm.", "exposed");
  } else {
    line(Paint::kDim, "", "rank", "host", "op.", "input", "comm.", "rest");
  }
  std::set<int> numbers;
  for (const TraceSummary& t : traces) numbers.insert(t.rank);
  const bool told_apart = numbers.size() == traces.size();
  for (const TraceSummary& t : traces) {
    const bool late = std::any_of(diagnosis.stragglers.begin(), diagnosis.stragglers.end(),
                                  [&](const Straggler& s) { return s.rank == t.rank; });
    const Paint paint = late ? Paint::kWarn : Paint::kPlain;
    std::string end = late ? "  others wait for it" : "";
    // Recordings of one rank, or of none: their files tell them apart.
    if (!told_apart)
      end += "  " + fit_end(page.clean(t.file), std::max<size_t>(page.options().width, 74) - 54,
                            page.options().unicode);
    const std::string rank = t.rank >= 0 ? fmt::format("{}", t.rank) : "-";
    if (!devices) {
      const HostSummary& h = t.host;
      line(paint, end, rank, time_text(h.span), share_text(h.operators, h.span),
           share_text(h.input_wait, h.span), share_text(h.collective_wait, h.span),
           share_text(h.span - h.operators - h.input_wait - h.collective_wait, h.span));
      continue;
    }
    if (t.devices.empty()) continue;
    const DeviceTimes& d = t.devices[0].times;
    line(paint, end, rank, time_text(d.span), share_text(d.busy, d.span),
         share_text(d.idle(), d.span), share_text(d.communication, d.span),
         share_text(d.exposed_communication(), d.span));
  }
  for (size_t i = 0; i < diagnosis.waits.size() && i < kWaits; ++i) {
    const RankWait& w = diagnosis.waits[i];
    page.row(i == 0 ? "waiting a step" : "", time_text(w.time),
             fmt::format("rank {} for rank {}", w.rank, w.for_rank));
  }
}

}  // namespace

std::string render_trace_summary(const std::vector<TraceSummary>& traces,
                                 const TraceDiagnosis& diagnosis, const TextOptions& options) {
  Page page(options);
  verdict(page, diagnosis);
  if (traces.size() > 2) {
    ranks(page, traces, diagnosis);
    for (const TraceSummary& t : traces)
      if (t.damage.any() || t.incomplete()) trace(page, t, false);
  } else {
    for (const TraceSummary& t : traces) trace(page, t, t.devices.size() <= 2);
  }
  return page.take();
}

std::string render_trace_diff(const TraceDiff& diff, const TextOptions& options) {
  Page page(options);
  if (diff.step_a > 0 && diff.step_b > 0) {
    const bool slower = diff.step_b > diff.step_a;
    page.line({{fmt::format("A step takes {} instead of {} ({:+.1f} %)", time_text(diff.step_b),
                            time_text(diff.step_a),
                            100.0 * static_cast<double>(diff.step_b - diff.step_a) /
                                static_cast<double>(diff.step_a)),
                slower ? Paint::kBad : Paint::kGood}});
  } else {
    page.line({{"No steps on both sides: times of the whole traces", Paint::kBold}});
  }
  const auto list = [&](const std::vector<TraceChange>& changes, std::string_view title) {
    if (changes.empty()) return;
    page.blank();
    page.line(
        {{fmt::format("  {}{}", title, diff.step_a > 0 && diff.step_b > 0 ? ", time a step" : ""),
          Paint::kBold}});
    for (size_t i = 0; i < changes.size() && i < kRows; ++i) {
      const TraceChange& c = changes[i];
      const int64_t d = c.difference();
      page.line({{fmt::format("  {:>10}", (d > 0 ? "+" : "-") + time_text(d > 0 ? d : -d)),
                  d > 0 ? Paint::kBad : Paint::kGood},
                 {fmt::format("  {:>9} {} {:>9}  {:<8} ", time_text(c.a),
                              options.unicode ? "→" : ">", time_text(c.b), c.kind),
                  Paint::kDim},
                 {page.fit(fmt::format("{}{}{} ({}x, {}x)", c.name, c.place.empty() ? "" : " in ",
                                       c.place, c.count_a, c.count_b),
                           page.options().width > 60 ? page.options().width - 46 : 20)}});
    }
  };
  list(diff.slower, "slower");
  list(diff.faster, "faster");
  return page.take();
}

}  // namespace flatout::report

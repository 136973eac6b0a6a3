#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "report/bar.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Diagnosis;
using model::Finding;
using model::Run;

constexpr size_t kIndent = 10;  // where text begins after a label such as "  costs   "
constexpr size_t kChangesShown = 3;
constexpr size_t kRanksShown = 8;
constexpr size_t kWhole = 1000;  // lines: more than any text takes

/// A piece of the report; pieces that matter less are left out first.
struct Block {
  std::vector<Line> lines;
  int rank = 0;  // 0: always shown; the highest goes first
};

class Writer {
 public:
  explicit Writer(const TextOptions& options) : options_(options) {}

  std::string clean(std::string_view s) const { return report::clean(s, options_); }
  const char* glyph(const char* unicode, const char* ascii) const {
    return options_.unicode ? unicode : ascii;
  }
  const TextOptions& options() const { return options_; }

  void add(int rank, std::vector<Line> lines) { blocks_.push_back({std::move(lines), rank}); }
  void add(int rank, Line line) { blocks_.push_back({{std::move(line)}, rank}); }
  void gap() { blocks_.push_back({{Line{}}, 0}); }

  /// "  label   text", wrapped below the text, at most `limit` lines. `tail` is set dim at the end
  /// of the last line where there is room.
  std::vector<Line> labelled(std::string_view name, std::string_view text, Paint paint,
                             size_t limit, std::string_view tail = {}) const {
    const size_t room = options_.width - kIndent;
    std::vector<std::string> wrapped = wrap(text, room);
    if (wrapped.empty()) wrapped.emplace_back();
    if (wrapped.size() > limit) {
      wrapped[limit - 1] += ' ' + wrapped[limit];
      wrapped.resize(limit);
      // Joined it is too long, so that fit() marks the cut.
      wrapped.back() = fit(wrapped.back(), room, options_.unicode);
    }
    std::vector<Line> lines;
    for (size_t i = 0; i < wrapped.size(); ++i) {
      Line line{{fmt::format("  {:<{}}", i == 0 ? name : "", kIndent - 2), Paint::kDim},
                {wrapped[i], paint}};
      if (i + 1 == wrapped.size() && !tail.empty() &&
          display_width(wrapped[i]) + 2 + display_width(tail) <= room) {
        line.push_back({"  " + std::string(tail), Paint::kDim});
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

  std::string str() {
    drop_until_it_fits();
    std::string out;
    bool blank = true;  // no blank line first, nor two in a row
    for (const Block& block : blocks_) {
      for (const Line& line : block.lines) {
        if (line.empty() && blank) continue;
        blank = line.empty();
        out += render(line, options_.color) + "\n";
      }
    }
    return out;
  }

 private:
  size_t height() const {
    size_t n = 0;
    bool blank = true;
    for (const Block& block : blocks_) {
      for (const Line& line : block.lines) {
        if (line.empty() && blank) continue;
        blank = line.empty();
        ++n;
      }
    }
    return n;
  }
  void drop_until_it_fits() {
    if (options_.height == 0) return;
    while (height() > options_.height) {
      size_t worst = blocks_.size();
      for (size_t i = 0; i < blocks_.size(); ++i) {
        if (blocks_[i].rank > 0 &&
            (worst == blocks_.size() || blocks_[i].rank >= blocks_[worst].rank)) {
          worst = i;  // of equal rank the last one
        }
      }
      if (worst == blocks_.size()) return;
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(worst));
    }
  }

  TextOptions options_;
  std::vector<Block> blocks_;
};

// "flatout  python train.py                    412 steps, 26.4 s, exit code 0"
void header(Writer& w, const Run& run) {
  std::string right = format_duration(run.end - run.begin);
  if (const std::string ended = exit_text(run); !ended.empty()) right += ", " + ended;
  const size_t width = w.options().width;
  const size_t room = width > right.size() + 11 ? width - right.size() - 11 : 10;
  const std::string command = fit(w.clean(command_of(run)), room, w.options().unicode);
  const size_t used = 9 + display_width(command) + right.size();
  w.add(0, Line{{"flatout", Paint::kBold},
                {"  " + command},
                {std::string(used < width ? width - used : 1, ' ')},
                {right, failed(run) ? Paint::kBad : Paint::kDim}});
  w.gap();
}

std::string cost_text(const Finding& f, const Run& run) {
  if (f.cost_ms_per_step) {
    const Nanos cost = nanos(*f.cost_ms_per_step * 1e6);
    const Nanos step =
        run.steps.summary.mean.count() > 0 ? run.steps.summary.mean : run.steps.summary.median;
    std::string text = format_duration(cost) + " per step";
    // What lies between the steps is no part of them.
    if (f.between_steps || (step.count() > 0 && cost > step)) {
      text += ", between the steps";
    } else if (step.count() > 0) {
      text += fmt::format(" ({} of a step's {} on average)",
                          format_percent(to_s(cost) / to_s(step)), format_duration(step));
    }
    return text;
  }
  if (f.cost_bytes) return format_bytes(*f.cost_bytes);
  return "";
}

std::string source_text(const model::Evidence& e) {
  if (e.readings > 0) return fmt::format("[{}, {}]", e.source, e.readings);
  return e.source.empty() ? "" : fmt::format("[{}]", e.source);
}

void evidence(Writer& w, const Finding& f, int rank) {
  const char* name = "why";
  for (const model::Evidence& e : f.evidence) {
    // Evidence may be several lines (a traceback, stacks): each is escaped by itself.
    const std::vector<std::string_view> parts = split(e.text, '\n');
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      std::string_view text = parts[i];
      size_t indent = 0;
      while (indent < text.size() && indent < 8 && text[indent] == ' ') ++indent;
      std::vector<Line> lines = w.labelled(name, w.clean(trim(text)), Paint::kPlain, 2,
                                           last ? w.clean(source_text(e)) : "");
      if (indent > 0 && parts.size() > 1) {
        for (Line& line : lines) line.insert(line.begin() + 1, Span{std::string(indent, ' ')});
      }
      w.add(rank, std::move(lines));
      name = "";
    }
    if (rank < 60) ++rank;
  }
}

void main_finding(Writer& w, const Finding& f, const Run& run) {
  const size_t width = w.options().width;
  const std::string id = w.clean(f.id);
  const std::string mark = w.glyph(f.ended_the_job ? "✗ " : "▲ ", f.ended_the_job ? "X " : "! ");
  const Paint paint = f.ended_the_job ? Paint::kBad : Paint::kWarn;
  const std::vector<std::string> title = wrap(w.clean(f.title), width - 4);
  std::vector<Line> lines;
  for (size_t i = 0; i < title.size(); ++i) {
    lines.push_back({{i == 0 ? mark : "  ", paint}, {title[i], Paint::kBold}});
  }
  if (lines.empty()) lines.push_back({{mark, paint}});
  const size_t used = display_width(lines.back());
  if (used + 2 + id.size() <= width) {
    lines.back().push_back({std::string(width - used - id.size(), ' ')});
    lines.back().push_back({id, paint});
  } else {
    lines.push_back({{"  "}, {id, paint}});
  }
  w.add(0, std::move(lines));
  if (const std::string cost = cost_text(f, run); !cost.empty()) {
    w.add(0, w.labelled("costs", cost, Paint::kPlain, 1));
  }
  if (f.gain) {
    w.add(0, w.labelled("gain", factor_text(*f.gain) + " the steps per second without it",
                        Paint::kGood, 1, fmt::format("({} sure)", format_percent(f.confidence))));
  }
  if (f.where) {
    w.add(0, w.labelled("where",
                        fit_end(w.clean(where_text(*f.where, width - kIndent)), width - kIndent,
                                w.options().unicode),
                        Paint::kAccent, 1));
  }
  for (size_t i = 0; i < f.remedies.size(); ++i) {
    w.add(i == 0 ? 0 : 20 + static_cast<int>(i),
          w.labelled(i == 0 ? "do" : "or", w.clean(f.remedies[i].text), Paint::kBold, kWhole));
  }
  evidence(w, f, 10);
  w.gap();
}

// The second finding and those after it: its name and, below it, what to do.
void other_findings(Writer& w, const Diagnosis& d) {
  constexpr size_t kInner = 16;
  const size_t width = w.options().width;
  for (size_t i = 1; i < d.findings.size(); ++i) {
    const Finding& f = d.findings[i];
    const std::string gain = f.gain ? factor_text(*f.gain) : "";
    const Line name{{i == 1 ? "  also    " : "          ", Paint::kDim},
                    {fmt::format("{:<6}", gain), Paint::kGood},
                    {w.clean(f.id), Paint::kWarn}};
    const size_t used = display_width(name) + 2;
    const bool beside = used + 20 <= width;
    const size_t indent = beside ? used : kInner;
    std::vector<Line> lines{name};
    for (const std::string& text : wrap(w.clean(f.title), width - indent)) {
      if (beside && lines.size() == 1 && lines[0].size() == name.size()) {
        lines[0].push_back({"  " + text});
      } else {
        lines.push_back({{std::string(indent, ' ')}, {text}});
      }
    }
    w.add(i <= 2 ? 5 : 15, std::move(lines));
    std::string detail = f.where ? where_text(*f.where, width / 2) : "";
    if (!f.remedies.empty()) detail += (detail.empty() ? "" : ": ") + f.remedies[0].text;
    lines.clear();
    for (const std::string& text : wrap(w.clean(detail), width - kInner)) {
      lines.push_back({{std::string(kInner, ' ')}, {text, Paint::kDim}});
    }
    if (!lines.empty()) w.add(i <= 2 ? 16 : 30, std::move(lines));
  }
  if (d.findings.size() > 1) w.gap();
}

void no_finding(Writer& w, const Run& run, const Diagnosis& d) {
  const bool healthy = d.verdict == "healthy" && d.judged && !failed(run);
  const std::string headline = !d.headline.empty() ? d.headline
                               : d.verdict == "none"
                                   ? "No verdict yet: too little was seen to judge."
                                   : "Healthy: nothing found that costs more than 5 % of a step.";
  std::vector<std::string> text = wrap(w.clean(headline), w.options().width - 2);
  std::vector<Line> lines;
  for (size_t i = 0; i < text.size(); ++i) {
    lines.push_back({{i > 0     ? "  "
                      : healthy ? w.glyph("✓ ", "+ ")
                                : "? ",
                      healthy ? Paint::kGood : Paint::kWarn},
                     {text[i], Paint::kBold}});
  }
  w.add(0, std::move(lines));
  w.gap();
}

/// Time between steps, where validations are, that the steps' own rate knows nothing of.
void between_steps(Writer& w, const model::StepSet& set) {
  constexpr double kShown = 0.05;
  Nanos between{};
  for (size_t i = 1; i < set.steps.size(); ++i) {
    if (set.steps[i].validation) between += set.steps[i].begin - set.steps[i - 1].end;
  }
  if (set.steps.size() < 2) return;
  const Nanos all = set.steps.back().end - set.steps.front().begin;
  const double share = to_s(between) / to_s(all);
  if (share < kShown) return;
  const double rate = static_cast<double>(set.steps.size()) / to_s(all);
  w.add(5,
        w.labelled(
            "between",
            fmt::format("the steps lies {} of the time (validation, rollouts): {} steps/s with it",
                        format_percent(share), format_number(rate)),
            Paint::kPlain, 2));
}

void steps(Writer& w, const Run& run) {
  const model::StepSummary& s = run.steps.summary;
  if (s.count == 0 || s.median.count() <= 0) {
    w.add(0, w.labelled("steps", "none were recognised: what is said here was seen from outside",
                        Paint::kPlain, 2,
                        run.fact("python.version").empty()
                            ? "(C and C++ programs mark theirs: flatout/marker.h)"
                            : ""));
    return;
  }
  std::string text = fmt::format("{} of {}, 95 % under {}", s.count, format_duration(s.median),
                                 format_duration(s.p95));
  text +=
      fmt::format(", {} steps/s", format_number(1 / to_s(s.mean.count() > 0 ? s.mean : s.median)));
  if (s.samples_per_s > 0) text += fmt::format(", {} samples/s", format_number(s.samples_per_s));
  w.add(0, w.labelled("steps", text, Paint::kPlain, 2,
                      s.warmup > 0 ? fmt::format("({} warm-up)", s.warmup) : ""));
  w.add(0, breakdown_bar(s.breakdown, w.options().width - kIndent, w.options()));
  int rank = 8;
  std::vector<Line> legend =
      breakdown_legend(s.breakdown, w.options().width - kIndent, w.options());
  // Not all the time of all steps, which costs are told of.
  const std::string of = "(of the usual step)";
  if (!legend.empty() && display_width(legend.back()) + 3 + of.size() <= w.options().width) {
    legend.back().push_back({"   " + of, Paint::kDim});
  } else if (!legend.empty()) {
    legend.push_back({{std::string(kIndent, ' ')}, {of, Paint::kDim}});
  }
  for (Line& line : legend) w.add(rank++, std::move(line));
  between_steps(w, run.steps);
  for (const model::SpeedChange& change : main_changes(run, kChangesShown)) {
    w.add(6, w.labelled("speed",
                        fmt::format("from step {} on ({} after the start) a step takes {}, "
                                    "before {}",
                                    change.index, since_begin(run, change.at),
                                    format_duration(change.after), format_duration(change.before)),
                        Paint::kWarn, 2));
  }
  if (run.steps.changes.size() > kChangesShown) {
    w.add(7, w.labelled("speed",
                        fmt::format("and {} lesser changes: the report has them all",
                                    run.steps.changes.size() - kChangesShown),
                        Paint::kPlain, 2));
  }
  if (run.steps.drift) {
    w.add(6, w.labelled("speed",
                        fmt::format("steps drift from {} at the start to {} at the end",
                                    format_duration(run.steps.drift->first),
                                    format_duration(run.steps.drift->last)),
                        Paint::kWarn, 2));
  }
}

// "GPU 0 works 62 % of the time; 30 % it waits for input, 8 % for launches"
void devices(Writer& w, const Run& run) {
  constexpr double kShown = 0.01;
  for (const model::DeviceUse& use : run.devices) {
    std::string text = fmt::format("GPU {} works {} of the time", use.sum.device,
                                   format_percent(use.share(use.sum.busy)));
    std::string_view between = "; it waits ";
    for (size_t i = 0; i < model::kIdleCauses; ++i) {
      const auto cause = static_cast<model::IdleCause>(i);
      if (use.idle(cause) < kShown) continue;
      text += fmt::format("{}{} for {}", between, format_percent(use.idle(cause)), label(cause));
      between = ", ";
    }
    w.add(6, w.labelled("device", text, Paint::kPlain, 3));
  }
}

void ranks(Writer& w, const model::RankReport& report) {
  std::string text = fmt::format("{} recorded", report.ranks.size());
  if (!report.absent.empty()) text += fmt::format(", {} not", report.absent.size());
  if (report.common_steps > 0) {
    text += fmt::format("; {} common steps of {}, {} of it in collectives whoever is last",
                        report.common_steps, format_duration(report.step),
                        format_duration(report.exposed));
  }
  w.add(0, w.labelled("ranks", text, Paint::kPlain, 2));
  int place = 8;
  for (const model::Rank* r : telling_ranks(report, kRanksShown)) {
    std::string line = fmt::format("rank {}", r->number);
    if (!r->host.empty()) line += " on " + r->host;
    if (report.common_steps > 0) {
      line +=
          fmt::format(": works {}, waits {}", format_duration(r->own), format_duration(r->waiting));
    }
    line += ", " + exit_text(*r);
    if (r->restarts > 0) line += fmt::format(", restarted {} times", r->restarts);
    w.add(place++, w.labelled("", w.clean(line), r->late ? Paint::kWarn : Paint::kDim, 1));
  }
}

void notes(Writer& w, const Run& run) {
  const std::vector<const model::Process*> left = survivors(run);
  if (!left.empty()) {
    std::string text = left.size() == 1
                           ? "one process of the job still runs:"
                           : fmt::format("{} processes of the job still run:", left.size());
    for (const model::Process* p : left) text += fmt::format(" {} ({})", p->pid, p->name);
    w.add(7, w.labelled("left", w.clean(text), Paint::kWarn, 2));
  }
  if (!run.missing.empty()) {
    // Only the names, at every end of every run: the reasons are in the report.
    const bool verbose = w.options().verbose;
    std::string text = "not measured: ";
    for (size_t i = 0; i < run.missing.size(); ++i) {
      const model::Missing& m = run.missing[i];
      text += (i == 0 ? "" : verbose ? "; " : ", ") + m.signal;
      if (verbose && !m.reason.empty()) text += " (" + m.reason + ")";
    }
    const size_t most = verbose ? kWhole : w.options().height > 0 ? 1 : 2;
    w.add(11, w.labelled("missing", w.clean(text), Paint::kDim, most,
                         verbose ? "" : "(why: --verbose)"));
  }
  if (!w.options().folder.empty()) {
    // Whole, however wide: it is there to be copied.
    w.add(4, Line{{"  report  ", Paint::kDim}, {w.clean(w.options().folder + "/report.html")}});
  }
}

}  // namespace

std::string render_text(const Run& run, const Diagnosis& diagnosis, const TextOptions& given) {
  TextOptions options = given;
  options.width = std::max<size_t>(options.width, 40);
  Writer w(options);
  header(w, run);
  if (diagnosis.findings.empty()) {
    no_finding(w, run, diagnosis);
  } else {
    if (const std::string damage = run.damage(); !damage.empty()) {
      w.add(0, w.labelled("damaged", "the recording is incomplete: " + damage, Paint::kWarn, 2));
      w.gap();
    }
    main_finding(w, diagnosis.findings[0], run);
    other_findings(w, diagnosis);
  }
  steps(w, run);
  if (!diagnosis.findings.empty() && !diagnosis.remark.empty()) {  // else the headline says it
    w.add(6, w.labelled("setting", w.clean(diagnosis.remark), Paint::kWarn, 2));
  }
  devices(w, run);
  if (diagnosis.ranks != nullptr) ranks(w, *diagnosis.ranks);
  notes(w, run);
  return w.str();
}

}  // namespace flatout::report

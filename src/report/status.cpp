#include "report/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "model/step_rate.h"
#include "report/words.h"

namespace flatout::report {
namespace {

using model::Run;

std::string clock_text(Nanos d) {
  const int64_t s = std::max<int64_t>(0, d.count() / 1'000'000'000);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string where_short(const model::Where& where) {
  const size_t slash = where.file.rfind('/');
  const std::string file = slash == std::string::npos ? where.file : where.file.substr(slash + 1);
  return where.line > 0 ? fmt::format("{}:{}", file, where.line) : file;
}

// The three largest parts: "input wait 61 %".
std::string parts_text(const model::StepSummary& s) {
  std::array<size_t, model::kPartCount> order{};
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return s.breakdown[a] > s.breakdown[b]; });
  std::string out;
  for (size_t i = 0; i < 3; ++i) {
    const double share = s.breakdown[order[i]];
    if (!(share >= 0.01)) break;
    out += (out.empty() ? "" : ", ") + std::string(label(static_cast<model::Part>(order[i]))) +
           " " + format_percent(share);
  }
  return out;
}

}  // namespace

std::string status_line(const Run& run, const model::Diagnosis& so_far,
                        const TextOptions& options) {
  // Pieces in the order shown; `rank` is the order in which they are given up (0: never).
  struct Piece {
    Line line;
    int rank;
  };
  std::vector<Piece> pieces;
  pieces.push_back({{{"flatout", Paint::kBold}}, 0});
  pieces.push_back({{{clock_text(run.end - run.begin), Paint::kDim}}, 3});
  if (const std::optional<double> rate = model::recent_rate(run.steps)) {
    pieces.push_back({{{format_number(*rate) + " steps/s"}}, 0});
    if (const std::string parts = parts_text(run.steps.summary); !parts.empty()) {
      pieces.push_back({{{parts, Paint::kDim}}, 4});
    }
  } else {
    pieces.push_back({{{"no steps yet"}}, 1});
  }
  if (!so_far.findings.empty()) {
    const model::Finding& f = so_far.findings[0];
    Line line{{clean(f.id, options), f.ended_the_job ? Paint::kBad : Paint::kWarn}};
    if (f.gain) line.push_back({" " + factor_text(*f.gain), Paint::kGood});
    pieces.push_back({std::move(line), 0});
    if (f.where) {
      pieces.push_back({{{clean(where_short(*f.where), options), Paint::kAccent}}, 2});
    }
    if (so_far.findings.size() > 1) {
      pieces.push_back({{{fmt::format("+{} more", so_far.findings.size() - 1), Paint::kDim}}, 5});
    }
  } else if (so_far.verdict == "healthy" && run.steps.steps.size() >= 5) {
    pieces.push_back({{{"healthy so far", Paint::kGood}}, 1});
  }
  const auto total = [&] {
    size_t width = 0;
    for (const Piece& p : pieces) width += display_width(p.line) + (width > 0 ? 2 : 0);
    return width;
  };
  while (total() > options.width) {
    const auto worst =
        std::max_element(pieces.begin(), pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.rank < b.rank; });
    if (worst->rank == 0) break;
    pieces.erase(worst);
  }
  Line all;
  for (const Piece& p : pieces) {
    if (!all.empty()) all.push_back({"  "});
    all.insert(all.end(), p.line.begin(), p.line.end());
  }
  if (display_width(all) <= options.width) return render(all, options.color);
  return fit(render(all, false), options.width, options.unicode);
}

std::string title_text(const Run& run, const model::Diagnosis& so_far) {
  TextOptions options;
  std::string out;
  if (const std::optional<double> rate = model::recent_rate(run.steps)) {
    out = format_number(*rate) + " steps/s ";
  }
  if (!so_far.findings.empty()) out += clean(so_far.findings[0].id, options) + " ";
  return fit(out + "- " + clean(command_of(run), options), 80, true);
}

}  // namespace flatout::report

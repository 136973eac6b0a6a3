// Backward passes that go again through what earlier ones of the same step went through.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/stats.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

// Of a step, from which it shows whether they grow; and how many times as long the later half of
// them takes.
constexpr size_t kFewPasses = 4;
constexpr double kLonger = 1.3;
constexpr double kMostSteps = 0.8;

/// The backward passes of each steady step, in seconds.
std::vector<std::vector<double>> backward_passes(const RunView& view) {
  std::vector<const Slice*> passes;
  for (const Slice& s : view.run().slices) {
    if (s.kind == SliceKind::kBackward && s.thread == view.trainer()) passes.push_back(&s);
  }
  std::ranges::sort(passes, {}, [](const Slice* s) { return s->end; });
  std::vector<std::vector<double>> out;
  size_t at = 0;
  for (const Step* step : view.steps().steady) {
    while (at < passes.size() && passes[at]->begin < step->begin) ++at;
    out.emplace_back();
    for (; at < passes.size() && passes[at]->end <= step->end; ++at) {
      out.back().push_back(to_s(passes[at]->length()));
    }
  }
  return out;
}

bool grow(std::span<const double> passes) {
  if (passes.size() < kFewPasses) return false;
  const size_t half = passes.size() / 2;
  return mean(passes.last(half)) > kLonger * mean(passes.first(half));
}

}  // namespace

void detect_retained(const RunView& view, Findings& findings) {
  if (!view.has_steps() || view.run().fact("torch.retain_graph") != "True") return;
  const auto steps = backward_passes(view);
  std::vector<double> first, last;
  double all = 0, passes = 0;
  for (const auto& step : steps) {
    for (const double pass : step) all += pass;
    passes += static_cast<double>(step.size());
    if (!grow(step)) continue;
    first.push_back(step.front());
    last.push_back(step.back());
  }
  // Losses of different sizes may come in this order now and then.
  const auto n = static_cast<double>(steps.size());
  if (static_cast<double>(first.size()) < kMostSteps * n) return;
  const double one = mean(first);
  const double more = std::max(all - one * passes, 0.0) / n;
  const WhatIf whatif(view);
  Finding* f = findings.add("cpu.retained_graph",
                            "Backward passes go again through what earlier ones went through", 0.85,
                            whatif.saved_by({.trainer = more, .trainer_cpu = more}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), "torch.retain_graph.set_at");
  if (!f->where) {
    f->where = view.where(
        [](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kBackward; });
  }
  const auto seen = static_cast<int64_t>(steps.size());
  evidence(*f, fmt::format("{:.3g} backward passes a step, with retain_graph", passes / n),
           passes / n, "passes", "timeline", seen);
  evidence(*f, fmt::format("the first takes {}", ms(one)), one * 1e3, "ms", "timeline", seen);
  evidence(*f, fmt::format("the last takes {}", ms(mean(last))), mean(last) * 1e3, "ms", "timeline",
           seen);
  remedy(*f, "detach",
         "Detach what goes from one pass into the next (state.detach()), or add the losses up and "
         "go backward once; retain_graph is then not needed.");
}

}  // namespace flatout::diagnose

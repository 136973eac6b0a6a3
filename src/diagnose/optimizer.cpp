// An optimizer that updates tensor by tensor and operation by operation, where one pass would do.
#include "diagnose/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Slice;
using model::SliceKind;

namespace {

// Of an update, what one pass spares: 61 to 79 % of Adam's and AdamW's, in loops and in jobs; of
// so many elements that each operation reads and writes memory, more of it (PyTorch 2.13).
constexpr double kSpared = 0.65, kSparedInMemory = 0.78, kInMemory = 4e6;
constexpr double kMuchSpared = 0.1;  // of the step

/// Seconds per steady step in updates.
double updates(const RunView& view) {
  const auto& steady = view.steps().steady;
  double sum = 0;
  size_t at = 0;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kOptimizer || s.thread != view.trainer()) continue;
    while (at < steady.size() && steady[at]->end < s.end) ++at;
    if (at == steady.size()) break;
    if (s.begin >= steady[at]->begin) sum += to_s(s.length());
  }
  return sum / static_cast<double>(std::max<int64_t>(view.steps().count, 1));
}

/// Of "AdamW: 52 tensors, 216320 elements".
double elements(std::string_view what) {
  const auto words = split(what, ' ');
  return words.size() < 2 ? 0 : parse_number<double>(words[words.size() - 2]).value_or(0);
}

}  // namespace

void detect_optimizer(const RunView& view, Findings& findings) {
  const std::string_view what = view.run().fact("torch.optimizer");
  if (what.empty() || !view.has_steps()) return;
  const double update = updates(view), step = view.steps().mean;
  const double spared = (elements(what) > kInMemory ? kSparedInMemory : kSpared) * update;
  if (spared < kMuchSpared * step) return;
  const std::string name(what.substr(0, what.find(':')));
  Finding* f = findings.add("cpu.unfused_optimizer",
                            name + " updates tensor by tensor, operation by operation", 0.8,
                            WhatIf(view).saved_by({.trainer = spared, .trainer_cpu = spared}));
  if (f == nullptr) return;
  f->where = setting_line(view.run(), "torch.optimizer.made_at");
  evidence(*f, fmt::format("updating takes {} a step", ms(update)), update * 1e3, "ms", "timeline",
           view.steps().count);
  evidence(*f, std::string(what) + " on the CPU, without fused=True", update / step, "ratio",
           "agent.optimizer", 1);
  remedy(*f, "fused", "Make it with fused=True: one pass over each tensor, the same result.");
}

}  // namespace flatout::diagnose

// An optimizer that updates tensor by tensor and operation by operation, where one pass would do.
#include "diagnose/unfused_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Slice;
using model::SliceKind;

namespace {

// Of an update, what one pass spares: 61 to 79 % of Adam's and AdamW's, in loops and in jobs; of
// so many elements that each operation reads and writes memory, more of it (PyTorch 2.13).
constexpr double kSpared = 0.65, kSparedInMemory = 0.78, kInMemory = 4e6;
constexpr double kMuchFaster = 1.1;  // less is not worth a word

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

std::string unfused_optimizer(const RunView& view) {
  const std::string_view what = view.run().fact("torch.optimizer");
  if (what.empty() || !view.has_steps()) return "";
  const double spared = (elements(what) > kInMemory ? kSparedInMemory : kSpared) * updates(view);
  const double gain =
      view.steps().mean / WhatIf(view).step_with({.trainer = spared, .trainer_cpu = spared});
  if (gain < kMuchFaster) return "";
  return fmt::format(
      "Its {}{} updates tensor by tensor, operation by operation: with fused=True it may be {:.1f} "
      "times as fast.",
      what.substr(0, what.find(':')),
      in_brackets(setting_line(view.run(), "torch.optimizer.made_at")), gain);
}

}  // namespace flatout::diagnose

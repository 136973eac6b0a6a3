#include "diagnose/evaluation_passes.h"

namespace flatout::diagnose {

using model::Slice;
using model::SliceKind;
using model::Step;

EvaluationPasses evaluation_passes(const RunView& view, std::span<const Step* const> steps) {
  EvaluationPasses out;
  size_t at = 0;
  const Step* last = nullptr;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kValidation || s.value != 1 || s.thread != view.trainer()) continue;
    while (at < steps.size() && steps[at]->end < s.end) ++at;
    if (at == steps.size()) break;
    if (s.begin < steps[at]->begin) continue;
    out.slices.push_back(&s);
    out.steps += steps[at] != last;
    last = steps[at];
  }
  return out;
}

}  // namespace flatout::diagnose

#include "model/step_rate.h"

namespace flatout::model {

std::optional<double> recent_rate(const StepSet& set) {
  const std::vector<Step>& steps = set.steps;
  if (steps.size() < 2) return std::nullopt;
  size_t first = steps.size() - 1;
  while (first > 0 && (steps.size() - first < 5 ||
                       steps.back().end - steps[first].begin < std::chrono::seconds(10))) {
    --first;
  }
  const double length = to_s(steps.back().end - steps[first].begin);
  const double count = static_cast<double>(steps.back().index - steps[first].index + 1);
  if (length <= 0 || count <= 0) return std::nullopt;
  return count / length;
}

}  // namespace flatout::model

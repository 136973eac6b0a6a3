// The steps that all ranks of a job have, and what can be told from their lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/rank.h"

namespace flatout::diagnose {

/// Steps that all ranks have, in seconds: [rank][step].
struct CommonSteps {
  std::vector<std::vector<double>> own, waiting;
  std::vector<double> length;  // mean over the ranks
  size_t count() const { return length.size(); }
};
/// None where the ranks do not keep step.
CommonSteps common_steps(const std::vector<model::Rank>& ranks);

/// How sure it is that the mean of a value of steps, which take `length` seconds, is above none: by
/// Student's test.
enum class Sure { kNo, kOneInHundred, kOneInThousand };
Sure surely_above(std::span<const double> values, double length);

/// Steps that a cause which costs `cost` on average lengthens, and by how much.
struct Struck {
  std::vector<bool> steps;
  double by = 0;
};
/// nullopt where it cannot be told: the steps are not of two kinds, or the cost is not what lies
/// between them.
std::optional<Struck> struck_by(std::span<const double> steps, double cost);

}  // namespace flatout::diagnose

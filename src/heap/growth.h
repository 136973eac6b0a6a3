// Tells a leak from a cache and from the ups and downs of a loop: by what one place of a program
// had in use at moments spread evenly over its allocations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace flatout::heap {

struct Growth {
  double bytes = 0;             // from the first quarter of the run to the last
  double bytes_per_moment = 0;  // in the second half of it
};

/// What grows from quarter to quarter and goes on to the end: nullopt where that is not so, where
/// there are fewer than 8 moments, or where it may be chance: `sample_bytes` is what one sample
/// stands for.
std::optional<Growth> steady_growth(const std::vector<uint64_t>& at_moment, double sample_bytes);

/// The slope of y over x by least squares; 0 without two different x.
double slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace flatout::heap

// Tells a leak from a cache and from the ups and downs of a loop: by what one place of a program
// had in use at moments spread evenly over its allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace flatout::heap {

constexpr size_t kLeastMoments = 8;  // with fewer nothing is said of growth

struct Growth {
  double bytes = 0;             // over the run, or over all of it but the first quarter
  double bytes_per_moment = 0;  // in the second half of it
  bool certain = false;         // false: it may be, but the samples are too few to tell
};

/// What grows in each part of the run and goes on to the end: nullopt where that is not so, and
/// where it is no more than chance. `sample_bytes` is what one sample stands for: a level of n
/// samples that come and go is off by sqrt(n) of them; one that nothing is freed of by nothing.
std::optional<Growth> steady_growth(const std::vector<uint64_t>& at_moment, double sample_bytes);

/// The same over time, for a program without steps that allocates most within a part of its run:
/// what leaks slowly in the rest is in few of the moments. Only what is certain, and what goes on
/// in the last of them. `at_ns` has the moments' times.
std::optional<Growth> growth_over_time(const std::vector<uint64_t>& at_moment,
                                       const std::vector<uint64_t>& at_ns, double sample_bytes);

/// The slope of y over x by least squares; 0 without two different x.
double slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace flatout::heap

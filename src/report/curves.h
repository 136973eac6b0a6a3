// Signals as curves over the run, for charts: counters become rates, processes are summed, and
// everything is brought to equal buckets of time.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/run.h"

namespace flatout::report {

struct Curve {
  std::string label;
  std::vector<double> values;  // a value per bucket; NaN where nothing was read
  bool limit = false;          // drawn as a dashed line: a limit, not a reading
};

struct Chart {
  std::string id, title;
  std::string unit;  // "cores", "bytes/s", "bytes", "ratio", "1/s", "tasks", "1"
  std::vector<Curve> curves;
};

/// Buckets of equal length over the run.
struct Buckets {
  TimePoint begin;
  Nanos width{};
  size_t count = 0;

  TimePoint start(size_t i) const { return begin + width * static_cast<int64_t>(i); }
};

/// At most `most` buckets, none shorter than the readings are apart.
Buckets make_buckets(const model::Run& run, size_t most = 500);

/// Charts with at least one curve, in the order of the report.
std::vector<Chart> make_charts(const model::Run& run, const Buckets& buckets);

}  // namespace flatout::report

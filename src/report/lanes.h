// Slices of the training thread and of the loader's workers over time, in a few windows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/run.h"

namespace flatout::report {

struct LaneSlice {
  TimePoint begin, end;
  model::SliceKind kind{};
  int64_t value = 0, value2 = 0;
};

struct Lane {
  std::string name;
  std::vector<LaneSlice> slices;  // outer ones before inner ones
};

struct LaneWindow {
  std::string title;  // "whole run", "around the slowest step (17)"
  TimePoint begin, end;
  std::vector<Lane> lanes;  // the training thread first
};

struct Lanes {
  std::vector<LaneWindow> windows;
  size_t threads_left_out = 0;
};

/// The whole run where it has at most `most` slices, else windows of about that many in all.
Lanes make_lanes(const model::Run& run, size_t most = 3000);

}  // namespace flatout::report

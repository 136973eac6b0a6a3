// What `flatout heap` says of a job's processes: text for people, JSON for scripts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "heap/process_heap.h"

namespace flatout::heap {

struct ReportOptions {
  bool leaks = false;  // nothing but what grows
  size_t lines = 15;   // of each table
};

/// `heaps`: the one with the largest peak first, which is the one that is told of in full.
std::string report_text(const std::vector<ProcessHeap>& heaps, const ReportOptions& options);
std::string report_json(const std::vector<ProcessHeap>& heaps);

}  // namespace flatout::heap

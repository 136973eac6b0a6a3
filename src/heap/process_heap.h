// The heap of one process of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heap/record.h"
#include "heap/sites.h"

namespace flatout::heap {

struct ProcessHeap {
  Record record;
  std::vector<Site> sites;
  std::string command;
};

/// Fills in the sites, by the symbols of the files that the process had mapped. `step_ends_ns`: of
/// its steps, may be empty. `pprof`: nullptr, or where its profile goes (heap/pprof.h).
void look_up(ProcessHeap& heap, const std::vector<uint64_t>& step_ends_ns, std::string* pprof);

}  // namespace flatout::heap

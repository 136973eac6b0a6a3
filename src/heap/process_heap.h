// The heap of one process of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heap/record.h"
#include "heap/sites.h"
#include "heap/tree.h"

namespace flatout::heap {

struct ProcessHeap {
  Record record;
  std::vector<Site> sites;
  std::string command;
};

/// The same for other tools and for a picture.
struct Profiles {
  std::string pprof;  // heap/pprof.h
  std::vector<TreeNode> tree;
};

/// Fills in the sites, by the symbols of the files that the process had mapped. `step_ends_ns`: of
/// its steps, may be empty. `profiles`: nullptr where they are not wanted.
void look_up(ProcessHeap& heap, const std::vector<uint64_t>& step_ends_ns, Profiles* profiles);

}  // namespace flatout::heap

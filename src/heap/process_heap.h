// The heap of one process of a job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "heap/record.h"
#include "heap/sites.h"
#include "heap/tree.h"

namespace flatout::heap {

struct ProcessHeap {
  Record record;
  std::vector<Site> sites;
  std::string command;
  size_t readings = 0;           // moments that growth was looked for in
  std::string_view since;        // " since the first step", " since the fork": where they begin
  std::optional<Nanos> written;  // when the record was, from the begin of the run on
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

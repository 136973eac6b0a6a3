// The stacks of a heap record as one tree, from main() inwards: what a flame graph shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heap/record.h"
#include "heap/sites.h"

namespace flatout::heap {

struct TreeNode {
  std::string name;  // "step (train.py:12)"
  std::string file;  // whole path; "" for the root
  // With everything below.
  uint64_t peak_bytes = 0, live_bytes = 0;
  std::vector<uint32_t> children;  // largest at the peak first
};

/// Node 0 is the whole. Nodes that had less than `least` of it at the peak are left out.
std::vector<TreeNode> heap_tree(const Record& record, symbols::NativeSymbols* symbols,
                                double least = 0.0005);

}  // namespace flatout::heap

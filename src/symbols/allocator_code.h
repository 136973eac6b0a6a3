// Which code of a process is its memory allocator: the C library's, or a library that stands for
// it.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "symbols/process_maps.h"

namespace flatout::symbols {

class AllocatorCode {
 public:
  /// Holds nothing where there is none, or its file cannot be read.
  static AllocatorCode of(const std::vector<Mapping>& maps);

  bool holds(uint64_t address) const;
  /// Whether one of the addresses in `stack`, the words next to a thread's stack pointer, leads
  /// back into it: what it called itself waits or asks the kernel for memory.
  bool is_called_from(std::string_view stack) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // [begin, end)
};

}  // namespace flatout::symbols

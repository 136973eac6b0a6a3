#include <cstdlib>

#include "symbols/process_maps.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::symbols;
  const std::vector<Mapping> maps = parse_maps({reinterpret_cast<const char*>(data), size}, 1000);
  if (maps.size() > 1000) std::abort();
  for (const Mapping& m : maps) {
    if (m.begin >= m.end) std::abort();
    const Mapping* found = find_mapping(maps, m.begin);
    if (found != nullptr && (found->begin > m.begin || found->end <= m.begin)) std::abort();
  }
  return 0;
}

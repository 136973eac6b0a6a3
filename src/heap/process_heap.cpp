#include "heap/process_heap.h"

#include "heap/pprof.h"

namespace flatout::heap {

void look_up(ProcessHeap& heap, const std::vector<uint64_t>& step_ends_ns, Profiles* profiles) {
  const auto opened = symbols::NativeSymbols::open(heap.record.maps);
  symbols::NativeSymbols* const symbols = opened.ok() ? opened->get() : nullptr;
  heap.sites = find_sites(heap.record, symbols, step_ends_ns);
  const size_t first = first_moment(heap.record, step_ends_ns);
  heap.readings = heap.record.moments_ns.size() - first;
  heap.since_a_step = first > 0;
  if (profiles == nullptr) return;
  profiles->pprof = pprof_profile(heap.record, symbols);
  profiles->tree = heap_tree(heap.record, symbols);
}

}  // namespace flatout::heap

#include "heap/process_heap.h"

#include "heap/pprof.h"

namespace flatout::heap {

void look_up(ProcessHeap& heap, const std::vector<uint64_t>& step_ends_ns, Profiles* profiles) {
  const auto opened = symbols::NativeSymbols::open(heap.record.maps);
  symbols::NativeSymbols* const symbols = opened.ok() ? opened->get() : nullptr;
  heap.sites = find_sites(heap.record, symbols, step_ends_ns);
  const size_t first = first_moment(heap.record, step_ends_ns);
  heap.readings = heap.record.moments_ns.size() - first;
  const bool by_steps = has_steps(step_ends_ns) && step_ends_ns.front() >= heap.record.forked_ns;
  if (first > 0) heap.since = by_steps ? " since the first step" : " since the fork";
  if (profiles == nullptr) return;
  profiles->pprof = pprof_profile(heap.record, symbols);
  profiles->tree = heap_tree(heap.record, symbols);
}

}  // namespace flatout::heap

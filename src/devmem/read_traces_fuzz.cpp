// Any bytes as a file to replay or explain: nothing crashes, and what is read is a job that can be
// replayed.
#include <cstdint>
#include <string_view>
#include <vector>

#include "devmem/explain.h"
#include "devmem/history.h"
#include "devmem/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;  // NOLINT
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto explanation = devmem::explain(bytes);
  if (explanation.ok()) FLATOUT_CHECK(!devmem::explanation_json(*explanation).empty());
  const auto traces = devmem::read_traces(bytes, "fuzz");
  if (!traces.ok()) return 0;
  for (const devmem::Trace& trace : *traces) {
    std::vector<int> state(trace.blocks, 0);  // 1 live, 2 freed
    uint32_t next = 0;
    for (const devmem::Op& op : trace.ops) {
      if (op.kind == devmem::Op::kMark) continue;
      FLATOUT_CHECK(op.block < trace.blocks);
      if (op.kind == devmem::Op::kAllocate) {
        FLATOUT_CHECK(op.block == next++ && op.size > 0);
        state[op.block] = 1;
      } else {
        FLATOUT_CHECK(state[op.block] == 1);
        state[op.block] = 2;
      }
    }
    FLATOUT_CHECK(next == trace.blocks && trace.site_of.size() == trace.blocks);
    const model::MemoryHistory history = devmem::memory_history(trace, 1000, 20, 4);
    FLATOUT_CHECK(history.peak == trace.peak_live);
  }
  return 0;
}

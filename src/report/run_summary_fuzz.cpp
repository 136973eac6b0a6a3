// Any bytes as the run.json and findings.json of a run folder: a summary that can be listed, or
// none.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "report/run_summary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::report;  // NOLINT: a program of its own
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // As both, and as one of them each.
  const size_t cut = std::min(text.find('\0'), size);
  const std::string_view second = text.substr(std::min(cut + 1, size));
  for (const auto& [run, findings] : {std::pair{text, text}, {text.substr(0, cut), second}}) {
    const auto summary = read_summary(run, findings);
    if (!summary) continue;
    const std::vector<ListedRun> runs = {{"id", false, *summary}};
    FLATOUT_CHECK(!runs_json(runs, 1).empty());
  }
  return 0;
}

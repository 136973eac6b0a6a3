// Any bytes are a log: it must neither crash nor depend on how it is cut into pieces.
#include <cstdint>
#include <string_view>

#include "advise/explain.h"
#include "base/result.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::advise;  // NOLINT: a fuzzer
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  LogReader whole, pieces;
  if (!text.empty()) whole.feed(text);
  for (size_t at = 0; at < text.size();) {
    const size_t feed = text.find('\n', at);
    const size_t end = feed == std::string_view::npos ? text.size() : feed + 1;
    pieces.feed(text.substr(at, end - at));
    at = end;
  }
  const auto a = explain(whole.finish(), {}), b = explain(pieces.finish(), {});
  FLATOUT_CHECK(a.kind == b.kind && a.lines == b.lines);
  return 0;
}

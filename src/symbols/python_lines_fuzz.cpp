// Line tables and memory maps come from another process, whose memory changes while it is read.
#include <cstdint>
#include <string_view>

#include "symbols/process_maps.h"
#include "symbols/python_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto lines = flatout::symbols::PythonLines::decode(text, 1, 8 + data[0] % 7);
  for (int at = -2; at < 64; at++) (void)lines.line(at);
  const auto maps = flatout::symbols::parse_maps(text, 100);
  for (const auto& map : maps) {
    if (flatout::symbols::find_mapping(maps, map.begin) != &map) __builtin_trap();
  }
  return 0;
}

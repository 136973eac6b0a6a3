// Any bytes as the options of a Loader, and as a pattern of file names.
#include <cstdint>
#include <string>

#include "feed/options_json.h"
#include "feed/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)flatout::feed::parse_options(text);
  (void)flatout::feed::expand_braces(text);
  return 0;
}

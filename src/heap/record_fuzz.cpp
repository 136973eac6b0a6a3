#include <cstddef>
#include <cstdint>

#include "heap/record.h"
#include "heap/sites.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto record = flatout::heap::parse_record(text);
  // The maps name files, which are not for a fuzzer to open: Python's frames alone.
  if (record.ok()) (void)flatout::heap::find_sites(*record, nullptr, {});
  return 0;
}

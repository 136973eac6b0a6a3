// Machine code may be anything: another process's memory around an address.
#include <cstdint>
#include <cstdlib>

#include "symbols/spin_loop.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view code(reinterpret_cast<const char*>(data), size);
  const size_t middle = size / 2;
  const bool waits = flatout::symbols::is_spin_loop(code, middle);
  // What lies out of reach changes nothing.
  const size_t reach = flatout::symbols::kSpinLoopReach;
  const size_t begin = middle > reach ? middle - reach : 0;
  if (waits != flatout::symbols::is_spin_loop(code.substr(begin), middle - begin)) std::abort();
  return 0;
}

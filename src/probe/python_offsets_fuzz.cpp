// Any bytes as the interpreter's own description of its memory: what is believed can be read with.
#include <cstdint>
#include <string>
#include <string_view>

#include "probe/testing/fake_python.h"

using namespace flatout::probe;  // NOLINT: a program of its own

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool free_threaded = (data[0] & 1) != 0;
  FakePython python(fake_offsets(13 + (data[0] >> 1) % 2, free_threaded), 48 << 10);
  const uint64_t thread = python.add_thread(41);
  python.call(thread, python.add_code("f", "a.py", 1), 3);
  python.hold_gil(thread);
  // Words of the description, one after another or from a place of the input's choice.
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (size_t at = 0; at + 9 <= bytes.size(); at += 9) {
    const auto word = static_cast<uint8_t>(bytes[at]);
    python.memory->poke_bytes(FakePython::kRuntime + 8 + 8 * uint64_t{word}, bytes.data() + at + 1,
                              8);
  }
  const std::string& runtime = python.memory->regions[FakePython::kRuntime];
  (void)parse_debug_offsets(std::string_view(runtime).substr(0, kDebugOffsetsSize));
  (void)parse_debug_offsets(bytes);
  auto reader = python.open();
  PythonReading reading;
  for (int i = 0; reader.ok() && i < 2; i++) (void)(*reader)->read(reading);
  return 0;
}

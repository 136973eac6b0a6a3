// Reads stacks from a made-up interpreter with bytes changed anywhere: what a torn reading or a
// hostile process can show. The input is a list of changes: version, then (where, what) again and
// again.
#include <cstdint>
#include <cstring>

#include "probe/loop_counter.h"
#include "probe/testing/fake_python.h"

using namespace flatout::probe;  // NOLINT: a program of its own

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const int minor = 8 + data[0] % 7;
  FakePython python(fake_offsets(minor, data[0] >= 128 && minor >= 13), 48 << 10);
  for (int i = 0; i < 3; i++) {
    const uint64_t thread = python.add_thread(41 + i);
    for (int j = 0; j < 4; j++) {
      const std::string name = "f" + std::to_string(j);
      const uint64_t frame =
          python.call(thread, python.add_code(name, "a.py", j * 20 + 1), j, j == 2 && minor > 10);
      const char* const types[] = {"range_iterator", "list_iterator", "enumerate", "iterator"};
      python.memory->poke(python.slot(frame, 0), python.add_iterator(types[j], j, 9));
    }
    python.hold_gil(thread);
  }
  auto early = python.open();
  PythonReading reading;
  const int32_t tids[] = {41, 42, 43};
  LoopCounter counter;
  const auto read = [&](PythonReader& reader) {
    (void)reader.read(reading, tids);
    for (const PythonThread& thread : reading.threads) (void)counter.update(thread.loops);
  };
  if (early.ok()) {
    (*early)->read_loops_of(41);
    read(**early);
  }
  for (size_t at = 1; at + 12 <= size; at += 12) {
    uint32_t where = 0;
    uint64_t what = 0;
    std::memcpy(&where, data + at, 4);
    std::memcpy(&what, data + at + 4, 8);
    const uint64_t bases[] = {FakePython::kRuntime, FakePython::kInterp, FakePython::kHeap,
                              FakePython::kHeap};
    const uint64_t address = bases[where & 3] + (where >> 2) % 16384;
    python.memory->poke(address, where & (1u << 31) ? what : FakePython::kHeap + what % 16384);
    if (early.ok()) read(**early);
  }
  auto late = python.open();
  if (!late.ok()) return 0;
  (void)(*late)->read(reading, tids);
  for (const PythonThread& thread : reading.threads) {
    for (const PythonFrame& frame : thread.frames) (void)(*late)->code(frame.code).function.size();
  }
  return 0;
}

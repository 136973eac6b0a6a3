// Where CPython keeps what a reader of stacks needs, for 3.8 to 3.14 on 64-bit Linux.
//
// 3.8 to 3.12: a table generated from the headers (tools/gen_python_offsets.sh). From 3.13 on the
// interpreter tells them itself: _Py_DebugOffsets at the start of _PyRuntime
// (Include/internal/pycore_debug_offsets.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace flatout::probe {

/// Byte offsets; 0 where this version has no such field (no field here lies at 0 but for those
/// where 0 is right anyway: interp_next, cframe_current, frame_code).
struct PythonOffsets {
  int minor = 0;
  bool free_threaded = false;
  // _PyRuntime
  uint32_t interpreters_head = 0;
  // The lock: struct _gil_runtime_state, part of _PyRuntime until 3.11, then of an interpreter.
  uint32_t runtime_gil = 0;
  uint32_t interp_gil = 0;  // pointer to it
  uint32_t gil_locked = 0;
  uint32_t gil_holder = 0;
  // The collector's state: part of _PyRuntime in 3.8, then of an interpreter.
  uint32_t runtime_gc_collecting = 0;
  uint32_t interp_gc_collecting = 0;
  // PyInterpreterState
  uint32_t interp_next = 0;
  uint32_t interp_threads_head = 0;
  uint32_t interp_modules = 0;
  // PyThreadState
  uint32_t thread_next = 0;
  uint32_t thread_interp = 0;
  uint32_t thread_id = 0;     // pthread_t
  uint32_t thread_frame = 0;  // until 3.10 and from 3.13: the frame; else the _PyCFrame
  uint32_t cframe_current = 0;
  uint32_t thread_native_id = 0;  // from 3.11
  uint32_t thread_chunk = 0;  // data stack, from 3.11; its top and limit are the next two fields
  uint32_t thread_status = 0;
  // PyFrameObject until 3.10, then _PyInterpreterFrame
  uint32_t frame_previous = 0;
  uint32_t frame_code = 0;
  uint32_t frame_instruction = 0;  // int f_lasti until 3.10, then a pointer into the bytecode
  uint32_t frame_owner = 0;
  uint32_t frame_bytecode_copy = 0;  // index of the thread's own copy of the bytecode (3.14t)
  // PyCodeObject
  uint32_t code_bytecode = 0;
  uint32_t code_bytecode_copies = 0;
  uint32_t code_filename = 0;
  uint32_t code_name = 0;
  uint32_t code_linetable = 0;
  uint32_t code_firstlineno = 0;
  // objects
  uint32_t object_type = 0;
  uint32_t type_name = 24;
  uint32_t bytes_size = 0;
  uint32_t bytes_data = 0;
  uint32_t unicode_length = 0;
  uint32_t unicode_state = 0;
  uint32_t unicode_ascii_size = 0;
  uint32_t unicode_compact_size = 0;

  bool has_cframe() const { return minor == 11 || minor == 12; }
  bool frames_on_data_stack() const { return minor >= 11; }
};

inline constexpr int kOldestPython = 8;
inline constexpr int kNewestPython = 14;
/// Bytes of _PyRuntime that parse_debug_offsets() wants.
inline constexpr size_t kDebugOffsetsSize = 1024;

/// The table of CPython 3.`minor`, 8 to 12; nullptr for others.
const PythonOffsets* python_offsets(int minor);

/// True where `runtime`, the start of _PyRuntime, holds a _Py_DebugOffsets.
bool has_debug_offsets(std::string_view runtime);
/// Errors: kUnsupported for a version that is not known, kBadInput where offsets make no sense.
Result<PythonOffsets> parse_debug_offsets(std::string_view runtime);

}  // namespace flatout::probe

// Where CPython keeps what a reader of stacks needs, for 3.8 to 3.15 on 64-bit Linux.
//
// 3.8 to 3.12: a table generated from the headers (tools/gen_python_offsets.sh). From 3.13 on the
// interpreter tells them itself: _Py_DebugOffsets at the start of _PyRuntime
// (Include/internal/pycore_debug_offsets.h).
// Header only and without the C++ run time: the allocator reads by it from within the process, the
// probes from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace flatout::wire {

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
  uint32_t frame_values =
      0;  // until 3.10 a pointer to the value stack, then locals and value stack
  // PyCodeObject
  uint32_t code_bytecode = 0;
  uint32_t code_bytecode_copies = 0;
  uint32_t code_filename = 0;
  uint32_t code_name = 0;
  uint32_t code_linetable = 0;
  uint32_t code_firstlineno = 0;
  uint32_t code_stacksize = 0;
  uint32_t code_nlocalsplus = 0;  // from 3.11
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
inline constexpr int kNewestPython = 15;
/// Bytes of _PyRuntime that read_debug_offsets() wants.
inline constexpr size_t kDebugOffsetsSize = 1024;

inline constexpr PythonOffsets kPythonTable[] = {
#include "wire/python_offsets_table.inc"
};

/// The table of CPython 3.`minor`, 8 to 12; nullptr for others.
inline const PythonOffsets* python_offsets(int minor) {
  for (const PythonOffsets& row : kPythonTable) {
    if (row.minor == minor) return &row;
  }
  return nullptr;
}

namespace internal {

inline constexpr char kPythonCookie[] = "xdebugpy";
inline constexpr size_t kPythonCookieSize = sizeof kPythonCookie - 1;

/// Reads the fields of one group of _Py_DebugOffsets in their order.
class Fields {
 public:
  Fields(const char* data, size_t size) : at_(data), end_(data + size) {}
  uint64_t word() {
    uint64_t value = 0;
    if (static_cast<size_t>(end_ - at_) < sizeof value) {
      ok_ = false;
      at_ = end_;
      return 0;
    }
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  uint32_t next() {
    const uint64_t value = word();
    if (value > kMaxOffset) ok_ = false;
    return static_cast<uint32_t>(value);
  }
  void skip(int count) {
    for (int i = 0; i < count; i++) word();
  }
  bool ok() const { return ok_; }

 private:
  // PyInterpreterState is some 200 KiB; offsets beyond this are damage.
  static constexpr uint64_t kMaxOffset = 4 << 20;
  const char *at_, *end_;
  bool ok_ = true;
};

inline bool plausible(const PythonOffsets& o) {
  // Fields that are read as one block must lie close together.
  for (const uint32_t offset : {o.thread_next, o.thread_interp, o.thread_id, o.thread_native_id,
                                o.thread_frame, o.thread_chunk}) {
    if (offset == 0 || offset > 4096) return false;
  }
  for (const uint32_t offset : {o.frame_previous, o.frame_code, o.frame_instruction, o.frame_owner,
                                o.frame_bytecode_copy, o.frame_values}) {
    if (offset > 1024) return false;
  }
  for (const uint32_t offset :
       {o.code_bytecode, o.code_bytecode_copies, o.code_filename, o.code_name, o.code_linetable,
        o.code_firstlineno, o.code_stacksize, o.code_nlocalsplus}) {
    if (offset > 1024) return false;
  }
  for (const uint32_t offset : {o.object_type, o.bytes_size, o.bytes_data, o.unicode_length,
                                o.unicode_state, o.unicode_ascii_size, o.type_name}) {
    if (offset == 0 || offset > 256) return false;
  }
  return o.interpreters_head != 0 && o.interp_threads_head != 0;
}

}  // namespace internal

/// True where `runtime`, the start of _PyRuntime, holds a _Py_DebugOffsets.
inline bool has_debug_offsets(const char* runtime, size_t size) {
  return size >= internal::kPythonCookieSize &&
         std::memcmp(runtime, internal::kPythonCookie, internal::kPythonCookieSize) == 0;
}

enum class DebugOffsets { kGood, kUnknownVersion, kDamaged };

/// `o.minor` is set in any case where there are offsets at all.
inline DebugOffsets read_debug_offsets(const char* runtime, size_t size, PythonOffsets& o) {
  o = {};
  if (!has_debug_offsets(runtime, size)) return DebugOffsets::kDamaged;
  internal::Fields head(runtime + internal::kPythonCookieSize, size - internal::kPythonCookieSize);
  const uint64_t version = head.word();
  o.free_threaded = head.word() != 0;
  if (!head.ok()) return DebugOffsets::kDamaged;
  o.minor = static_cast<int>(version >> 16 & 0xFF);
  if (version >> 24 != 3 || o.minor < 13 || o.minor > kNewestPython) {
    return DebugOffsets::kUnknownVersion;
  }
  const bool v14 = o.minor >= 14, v15 = o.minor >= 15;
  constexpr size_t kHead = internal::kPythonCookieSize + 2 * sizeof(uint64_t);
  internal::Fields f(runtime + kHead, size - kHead);
  // runtime_state: size finalizing interpreters_head
  f.skip(2);
  o.interpreters_head = f.next();
  // interpreter_state: size id next threads_head [threads_main] gc imports_modules sysdict
  // builtins ceval_gil gil gil_enabled gil_locked gil_holder [code_generation tlbc_generation]
  f.skip(2);
  o.interp_next = f.next();
  o.interp_threads_head = f.next();
  if (v14) f.skip(1);
  const uint32_t gc = f.next();
  o.interp_modules = f.next();
  f.skip(2);
  o.interp_gil = f.next();
  const uint32_t gil = f.next();
  f.skip(1);
  o.gil_locked = f.next() - gil;
  o.gil_holder = f.next() - gil;
  if (v14) f.skip(2);
  // thread_state: size prev next interp current_frame [base_frame last_profiled_frame
  // last_profiled_frame_seq] thread_id native_thread_id datastack_chunk status
  // [holds_gil gil_requested current_exception exc_state]; [err_stackitem: exc_value]
  f.skip(2);
  o.thread_next = f.next();
  o.thread_interp = f.next();
  o.thread_frame = f.next();
  if (v15) f.skip(3);
  o.thread_id = f.next();
  o.thread_native_id = f.next();
  o.thread_chunk = f.next();
  o.thread_status = f.next();
  if (v15) f.skip(4 + 1);
  // interpreter_frame: size previous executable instr_ptr localsplus owner
  // [stackpointer tlbc_index]
  f.skip(1);
  o.frame_previous = f.next();
  o.frame_code = f.next();
  o.frame_instruction = f.next();
  o.frame_values = f.next();
  o.frame_owner = f.next();
  if (v14) {
    f.skip(1);
    o.frame_bytecode_copy = f.next();
  }
  // code_object: size filename name qualname linetable firstlineno argcount localsplusnames
  // localspluskinds co_code_adaptive [co_tlbc]
  f.skip(1);
  o.code_filename = f.next();
  o.code_name = f.next();
  f.skip(1);
  o.code_linetable = f.next();
  o.code_firstlineno = f.next();
  o.code_stacksize = o.code_firstlineno - 4;  // its neighbours, which are not told
  o.code_nlocalsplus = o.code_firstlineno + 4;
  f.skip(3);
  o.code_bytecode = f.next();
  if (v14) o.code_bytecode_copies = f.next();
  // pyobject: size ob_type; type_object: size tp_name tp_repr tp_flags [tp_basicsize
  // tp_dictoffset]; [heap_type_object: 2]
  f.skip(1);
  o.object_type = f.next();
  f.skip(1);
  o.type_name = f.next();
  f.skip(2 + (v15 ? 2 + 2 : 0));
  // tuple_object, list_object: 3 each; [set_object: 4]; dict_object, float_object (2), long_object
  f.skip(3 + 3 + (v14 ? 4 : 0) + 3 + 2 + 3);
  // bytes_object: size ob_size ob_sval
  f.skip(1);
  o.bytes_size = f.next();
  o.bytes_data = f.next();
  // unicode_object: size state length asciiobject_size [compactunicodeobject_size]
  f.skip(1);
  o.unicode_state = f.next();
  o.unicode_length = f.next();
  o.unicode_ascii_size = f.next();
  // PyCompactUnicodeObject adds utf8_length and utf8.
  o.unicode_compact_size = v15 ? f.next() : o.unicode_ascii_size + 16;
  // gc: size collecting
  f.skip(1);
  o.interp_gc_collecting = gc + f.next();
  return f.ok() && internal::plausible(o) && o.gil_locked <= 256 && o.gil_holder <= 256
             ? DebugOffsets::kGood
             : DebugOffsets::kDamaged;
}

// ---- what objects hold ----

/// In the bit field at thread_status, from 3.12 on: the thread is attached to its interpreter.
inline constexpr uint32_t kThreadActive = 1 << 4;

/// Frames of the interpreter itself, between Python and C, in 3.12 and later (_frameowner).
inline constexpr uint8_t kOwnedByInterpreter = 3;

/// From 3.14 on a frame's code is a tagged reference.
inline uint64_t untag(uint64_t reference) { return reference & ~uint64_t{7}; }

/// From 3.15 on the index of a loop over a list or tuple lies on the value stack as such.
inline bool is_tagged_int(uint64_t reference) { return (reference & 3) == 3; }
inline int64_t tagged_int(uint64_t reference) { return static_cast<int64_t>(reference) >> 2; }

struct UnicodeState {
  int kind = 0;  // bytes of a character
  bool ascii = false;
};

/// The bit field of PyASCIIObject: interned, kind (3 bits), compact, ascii, ... `interned` has two
/// bits, in 3.14 without GIL a byte. Bits above are not always zero.
inline bool decode_unicode_state(uint32_t bits, const PythonOffsets& o, UnicodeState& out) {
  bits >>= o.free_threaded && o.minor >= 14 ? 8 : 2;
  const int kind = static_cast<int>(bits & 7);
  const bool compact = (bits & 8) != 0;
  if ((kind != 1 && kind != 2 && kind != 4) || !compact) return false;
  out = {kind, (bits & 16) != 0};
  return true;
}

/// Writes the character in UTF-8, one to four bytes; returns how many. What stands for a byte that
/// no character was found for (Python's "surrogateescape", in names of files) is that byte again.
inline size_t encode_utf8(uint32_t c, char* out) {
  const auto put = [&](size_t i, uint32_t bits) { out[i] = static_cast<char>(bits); };
  if (c >= 0xDC80 && c <= 0xDCFF) {
    put(0, c - 0xDC00);
    return 1;
  }
  if (c < 0x80) {
    put(0, c);
    return 1;
  }
  if (c < 0x800) {
    put(0, 0xC0 | c >> 6);
    put(1, 0x80 | (c & 63));
    return 2;
  }
  if (c < 0x10000) {
    put(0, 0xE0 | c >> 12);
    put(1, 0x80 | (c >> 6 & 63));
    put(2, 0x80 | (c & 63));
    return 3;
  }
  put(0, 0xF0 | (c >> 18 & 7));
  put(1, 0x80 | (c >> 12 & 63));
  put(2, 0x80 | (c >> 6 & 63));
  put(3, 0x80 | (c & 63));
  return 4;
}

}  // namespace flatout::wire

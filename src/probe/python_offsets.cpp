#include "probe/python_offsets.h"

#include <cstring>
#include <iterator>
#include <string>

#include "base/bytes.h"

namespace flatout::probe {
namespace {

constexpr std::string_view kCookie = "xdebugpy";

const PythonOffsets kTable[] = {
#include "probe/python_offsets_table.inc"
};

/// Reads the fields of one group of _Py_DebugOffsets in their order.
class Fields {
 public:
  explicit Fields(std::string_view data) : reader_(data) {}
  uint32_t next() {
    const auto value = reader_.get<uint64_t>();
    if (value > kMaxOffset) ok_ = false;
    return static_cast<uint32_t>(value);
  }
  void skip(int count) {
    for (int i = 0; i < count; i++) reader_.get<uint64_t>();
  }
  bool ok() const { return ok_ && reader_.ok(); }

 private:
  // PyInterpreterState is some 200 KiB; offsets beyond this are damage.
  static constexpr uint64_t kMaxOffset = 4 << 20;
  ByteReader reader_;
  bool ok_ = true;
};

bool plausible(const PythonOffsets& o) {
  // Fields that are read as one block must lie close together.
  for (const uint32_t offset : {o.thread_next, o.thread_interp, o.thread_id, o.thread_native_id,
                                o.thread_frame, o.thread_chunk}) {
    if (offset == 0 || offset > 4096) return false;
  }
  for (const uint32_t offset : {o.frame_previous, o.frame_code, o.frame_instruction, o.frame_owner,
                                o.frame_bytecode_copy}) {
    if (offset > 1024) return false;
  }
  for (const uint32_t offset : {o.code_bytecode, o.code_bytecode_copies, o.code_filename,
                                o.code_name, o.code_linetable, o.code_firstlineno}) {
    if (offset > 1024) return false;
  }
  for (const uint32_t offset : {o.object_type, o.bytes_size, o.bytes_data, o.unicode_length,
                                o.unicode_state, o.unicode_ascii_size, o.type_name}) {
    if (offset == 0 || offset > 256) return false;
  }
  return o.interpreters_head != 0 && o.interp_threads_head != 0;
}

}  // namespace

const PythonOffsets* python_offsets(int minor) {
  for (const PythonOffsets& row : kTable) {
    if (row.minor == minor) return &row;
  }
  return nullptr;
}

bool has_debug_offsets(std::string_view runtime) {
  return runtime.substr(0, kCookie.size()) == kCookie;
}

Result<PythonOffsets> parse_debug_offsets(std::string_view runtime) {
  if (!has_debug_offsets(runtime)) return Error{Code::kBadInput, "no debug offsets", ""};
  ByteReader head(runtime.substr(kCookie.size()));
  const auto version = head.get<uint64_t>();
  const auto free_threaded = head.get<uint64_t>();
  PythonOffsets o;
  o.minor = static_cast<int>(version >> 16 & 0xFF);
  o.free_threaded = free_threaded != 0;
  if (!head.ok() || version >> 24 != 3 || o.minor < 13 || o.minor > kNewestPython) {
    return Error{Code::kUnsupported,
                 "CPython " + std::to_string(version >> 24 & 0xFF) + "." + std::to_string(o.minor) +
                     " is not known to this flatout",
                 "update flatout"};
  }
  const bool v14 = o.minor >= 14;
  Fields f(runtime.substr(kCookie.size() + 16));
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
  // thread_state: size prev next interp current_frame thread_id native_thread_id
  // datastack_chunk status
  f.skip(2);
  o.thread_next = f.next();
  o.thread_interp = f.next();
  o.thread_frame = f.next();
  o.thread_id = f.next();
  o.thread_native_id = f.next();
  o.thread_chunk = f.next();
  o.thread_status = f.next();
  // interpreter_frame: size previous executable instr_ptr localsplus owner
  // [stackpointer tlbc_index]
  f.skip(1);
  o.frame_previous = f.next();
  o.frame_code = f.next();
  o.frame_instruction = f.next();
  f.skip(1);
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
  f.skip(3);
  o.code_bytecode = f.next();
  if (v14) o.code_bytecode_copies = f.next();
  // pyobject: size ob_type; type_object: size tp_name tp_repr tp_flags
  f.skip(1);
  o.object_type = f.next();
  f.skip(1);
  o.type_name = f.next();
  f.skip(2);
  // tuple_object, list_object: 3 each; [set_object: 4]; dict_object, float_object (2), long_object
  f.skip(3 + 3 + (v14 ? 4 : 0) + 3 + 2 + 3);
  // bytes_object: size ob_size ob_sval
  f.skip(1);
  o.bytes_size = f.next();
  o.bytes_data = f.next();
  // unicode_object: size state length asciiobject_size
  f.skip(1);
  o.unicode_state = f.next();
  o.unicode_length = f.next();
  o.unicode_ascii_size = f.next();
  // PyCompactUnicodeObject adds utf8_length and utf8.
  o.unicode_compact_size = o.unicode_ascii_size + 16;
  // gc: size collecting
  f.skip(1);
  o.interp_gc_collecting = gc + f.next();
  if (!f.ok() || !plausible(o) || o.gil_locked > 256 || o.gil_holder > 256) {
    return Error{Code::kBadInput, "the interpreter's debug offsets make no sense", ""};
  }
  return o;
}

}  // namespace flatout::probe

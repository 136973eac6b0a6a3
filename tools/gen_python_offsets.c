/* Prints one row of src/wire/python_offsets_table.inc: where CPython 3.8 to 3.12 keeps what a
 * reader of stacks needs. Compiled and run once per version, against that version's own public and
 * internal headers, by gen_python_offsets.sh. From 3.13 on the interpreter tells its offsets itself
 * (_Py_DebugOffsets). */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>

#include "internal/pycore_pystate.h"
#if PY_VERSION_HEX >= 0x03090000
#include "internal/pycore_gc.h"
#include "internal/pycore_gil.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#else
#include "internal/pycore_gil.h"
#endif
#if PY_VERSION_HEX >= 0x030B0000
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#endif

#define FIELD(name, value) printf("     .%s = %zu,\n", #name, (size_t)(value))

int main(void) {
  printf("    {.minor = %d,\n", PY_MINOR_VERSION);
  FIELD(interpreters_head, offsetof(_PyRuntimeState, interpreters.head));
#if PY_VERSION_HEX < 0x030C0000
  FIELD(runtime_gil, offsetof(_PyRuntimeState, ceval.gil));
#else
  FIELD(interp_gil, offsetof(PyInterpreterState, ceval.gil));
#endif
  FIELD(gil_locked, offsetof(struct _gil_runtime_state, locked));
  FIELD(gil_holder, offsetof(struct _gil_runtime_state, last_holder));
#if PY_VERSION_HEX < 0x03090000
  FIELD(runtime_gc_collecting, offsetof(_PyRuntimeState, gc.collecting));
#else
  FIELD(interp_gc_collecting, offsetof(PyInterpreterState, gc.collecting));
#endif
  FIELD(interp_next, offsetof(PyInterpreterState, next));
#if PY_VERSION_HEX < 0x030B0000
  FIELD(interp_threads_head, offsetof(PyInterpreterState, tstate_head));
#else
  FIELD(interp_threads_head, offsetof(PyInterpreterState, threads.head));
#endif
#if PY_VERSION_HEX < 0x030C0000
  FIELD(interp_modules, offsetof(PyInterpreterState, modules));
#else
  FIELD(interp_modules, offsetof(PyInterpreterState, imports.modules));
#endif
  FIELD(thread_next, offsetof(PyThreadState, next));
  FIELD(thread_interp, offsetof(PyThreadState, interp));
  FIELD(thread_id, offsetof(PyThreadState, thread_id));
#if PY_VERSION_HEX < 0x030B0000
  FIELD(thread_frame, offsetof(PyThreadState, frame));
  FIELD(frame_previous, offsetof(PyFrameObject, f_back));
  FIELD(frame_code, offsetof(PyFrameObject, f_code));
  FIELD(frame_instruction, offsetof(PyFrameObject, f_lasti));
  FIELD(frame_values, offsetof(PyFrameObject, f_valuestack));
#else
  FIELD(thread_frame, offsetof(PyThreadState, cframe));
  FIELD(cframe_current, offsetof(_PyCFrame, current_frame));
  FIELD(thread_native_id, offsetof(PyThreadState, native_thread_id));
  FIELD(thread_chunk, offsetof(PyThreadState, datastack_chunk));
  FIELD(frame_previous, offsetof(_PyInterpreterFrame, previous));
  FIELD(frame_code, offsetof(_PyInterpreterFrame, f_code));
  FIELD(frame_instruction, offsetof(_PyInterpreterFrame, prev_instr));
  FIELD(frame_owner, offsetof(_PyInterpreterFrame, owner));
  FIELD(frame_values, offsetof(_PyInterpreterFrame, localsplus));
  FIELD(code_bytecode, offsetof(PyCodeObject, co_code_adaptive));
#endif
  FIELD(code_filename, offsetof(PyCodeObject, co_filename));
  FIELD(code_name, offsetof(PyCodeObject, co_name));
#if PY_VERSION_HEX < 0x030A0000
  FIELD(code_linetable, offsetof(PyCodeObject, co_lnotab));
#else
  FIELD(code_linetable, offsetof(PyCodeObject, co_linetable));
#endif
  FIELD(code_firstlineno, offsetof(PyCodeObject, co_firstlineno));
  FIELD(code_stacksize, offsetof(PyCodeObject, co_stacksize));
#if PY_VERSION_HEX >= 0x030B0000
  FIELD(code_nlocalsplus, offsetof(PyCodeObject, co_nlocalsplus));
#endif
  FIELD(object_type, offsetof(PyObject, ob_type));
  FIELD(bytes_size, offsetof(PyVarObject, ob_size));
  FIELD(bytes_data, offsetof(PyBytesObject, ob_sval));
  FIELD(unicode_length, offsetof(PyASCIIObject, length));
  FIELD(unicode_state, offsetof(PyASCIIObject, state));
  FIELD(unicode_ascii_size, sizeof(PyASCIIObject));
  FIELD(unicode_compact_size, sizeof(PyCompactUnicodeObject));
  printf("    },\n");
  return 0;
}

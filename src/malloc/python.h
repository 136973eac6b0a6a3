// The Python frames of this thread, read by itself while it allocates: by CPython's own layout
// (wire/python_offsets.h), without the GIL (only this thread changes its frames, and they keep
// their code alive), without a call that could allocate.
#pragma once

#include <cstdint>

namespace flatout::malloc {

struct PythonPlace {  // an instruction of a code object: lives for ever
  PythonPlace* next;
  const void* code;  // what it was when it was seen first; another may lie there later
  const void *file_object, *name_object;
  int64_t at;  // bytecode offset
  uint32_t id, line;
  char text[];  // the file, NUL, the function, NUL
  const char* file() const { return text; }
  const char* function() const;
};

/// Looks for an interpreter in the process, the first time that it is called. One that is loaded
/// later by dlopen is not found.
void find_python();

/// A free-threaded interpreter keeps its objects in an allocator of its own, and does not start
/// where PYTHONMALLOC asks for malloc's (flatout heap does): takes that out of the environment.
/// Before the interpreter starts.
void spare_free_threaded_python();
/// Whether there was one.
bool python_keeps_its_objects();

/// Ids of the places of this thread's Python frames, innermost first, at most `most`.
unsigned python_stack(uint32_t* ids, unsigned most);
/// nullptr if there is none of that id.
const PythonPlace* python_place(uint32_t id);

void lock_python();
void unlock_python();
void reset_python_lock();

}  // namespace flatout::malloc

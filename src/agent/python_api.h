/* What python_calls.c needs of CPython: the stable ABI (PEP 384), declared by hand. All that is
 * used has been as it is here from 3.8 to 3.14, free-threaded builds included. */
#ifndef FLATOUT_AGENT_PYTHON_API_H_
#define FLATOUT_AGENT_PYTHON_API_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/agent.h"

typedef struct py_object py_object; /* opaque: its size depends on the build */

typedef py_object* (*py_function)(py_object* self, py_object* const* args, ssize_t count);

struct py_method {
  const char* name;
  py_function function;
  int flags;
  const char* doc;
};
#define PY_ONE_ARGUMENT 0x08
#define PY_FASTCALL 0x80 /* METH_FASTCALL: public since 3.7, in the stable ABI since 3.10 */

struct py_slot {
  int slot;
  void* function;
};
struct py_spec {
  const char* name;
  int size, item_size;
  unsigned flags;
  struct py_slot* slots;
};
/* Python/typeslots.h */
enum {
  PY_MP_LENGTH = 4,
  PY_MP_SUBSCRIPT = 5,
  PY_TP_CLEAR = 51,
  PY_TP_DEALLOC = 52,
  PY_TP_GETATTRO = 58,
  PY_TP_ITER = 62,
  PY_TP_ITERNEXT = 63,
  PY_TP_TRAVERSE = 71,
};
#define PY_HAVE_GC (1u << 14)
#define PY_DEFAULT_FLAGS (1u << 18)
#define PY_IS_LIST (1ul << 25)
#define PY_IS_TUPLE (1ul << 26)
#define PY_IS_DICT (1ul << 29)

/* name, result, arguments */
#define PY_FUNCTIONS(X)                                                         \
  X(PyCFunction_NewEx, py_object*, (struct py_method*, py_object*, py_object*)) \
  X(PyDict_GetItemString, py_object*, (py_object*, const char*))                \
  X(PyDict_New, py_object*, (void))                                             \
  X(PyDict_Next, int, (py_object*, ssize_t*, py_object**, py_object**))         \
  X(PyDict_SetItemString, int, (py_object*, const char*, py_object*))           \
  X(PyErr_Clear, void, (void))                                                  \
  X(PyErr_ExceptionMatches, int, (py_object*))                                  \
  X(PyErr_Occurred, py_object*, (void))                                         \
  X(PyErr_SetString, void, (py_object*, const char*))                           \
  X(PyIter_Next, py_object*, (py_object*))                                      \
  X(PyLong_AsLongLong, long long, (py_object*))                                 \
  X(PyLong_AsUnsignedLongLong, unsigned long long, (py_object*))                \
  X(PyObject_Call, py_object*, (py_object*, py_object*, py_object*))            \
  X(PyObject_CallFunctionObjArgs, py_object*, (py_object*, ...))                \
  X(PyObject_CallObject, py_object*, (py_object*, py_object*))                  \
  X(PyObject_GC_Del, void, (void*))                                             \
  X(PyObject_GC_UnTrack, void, (void*))                                         \
  X(PyObject_GenericGetAttr, py_object*, (py_object*, py_object*))              \
  X(PyObject_GetAttr, py_object*, (py_object*, py_object*))                     \
  X(PyObject_GetItem, py_object*, (py_object*, py_object*))                     \
  X(PyObject_IsTrue, int, (py_object*))                                         \
  X(PyObject_Size, ssize_t, (py_object*))                                       \
  X(PyObject_Type, py_object*, (py_object*))                                    \
  X(PySequence_GetItem, py_object*, (py_object*, ssize_t))                      \
  X(PyTuple_GetItem, py_object*, (py_object*, ssize_t))                         \
  X(PyTuple_Size, ssize_t, (py_object*))                                        \
  X(PyType_FromSpec, py_object*, (struct py_spec*))                             \
  X(PyType_GenericAlloc, py_object*, (py_object*, ssize_t))                     \
  X(PyType_GetFlags, unsigned long, (py_object*))                               \
  X(PyUnicode_CompareWithASCIIString, int, (py_object*, const char*))           \
  X(PyUnicode_InternFromString, py_object*, (const char*))                      \
  X(Py_DecRef, void, (py_object*))                                              \
  X(Py_IncRef, void, (py_object*))

#define PY_DECLARE(name, result, arguments) result(*name) arguments;
/* Filled once, before any builtin exists. */
FLATOUT_HOT_DATA static struct {
  PY_FUNCTIONS(PY_DECLARE)
  py_object *none, *long_type;
  py_object **type_error, **attribute_error, **stop_iteration, **exception;
} py = {0};
#undef PY_DECLARE

#endif /* FLATOUT_AGENT_PYTHON_API_H_ */

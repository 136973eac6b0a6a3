/* What the agent needs of CPython: the stable ABI (PEP 384) and PyMethod_New, declared by hand. All
 * that is used has been as it is here from 3.8 to 3.15, free-threaded builds included. */
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
#define PY_NO_ARGUMENTS 0x04
#define PY_ONE_ARGUMENT 0x08
#define PY_FASTCALL 0x80 /* METH_FASTCALL: public since 3.7, in the stable ABI since 3.10 */

#define PY_ARGUMENTS_OFFSET ((size_t)1 << 63) /* in the count of a vectorcall (PEP 590) */

struct py_member {
  const char* name;
  int type;
  ssize_t offset;
  int flags;
  const char* doc;
};
#define PY_MEMBER_SSIZE 19
#define PY_READ_ONLY 1

struct py_getset {
  const char* name;
  py_object* (*get)(py_object* object, void* closure);
  int (*set)(py_object* object, py_object* value, void* closure);
  const char* doc;
  void* closure;
};

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
  PY_TP_CALL = 50,
  PY_TP_CLEAR = 51,
  PY_TP_DEALLOC = 52,
  PY_TP_DESCR_GET = 54,
  PY_TP_GETATTRO = 58,
  PY_TP_ITER = 62,
  PY_TP_ITERNEXT = 63,
  PY_TP_METHODS = 64,
  PY_TP_REPR = 66,
  PY_TP_SETATTRO = 69,
  PY_TP_TRAVERSE = 71,
  PY_TP_MEMBERS = 72,
  PY_TP_GETSET = 73,
};
#define PY_HAVE_VECTORCALL (1u << 11)
#define PY_HAVE_GC (1u << 14)
#define PY_METHOD_DESCRIPTOR (1u << 17) /* bound by descr_get, or called with the object first */
#define PY_DEFAULT_FLAGS (1u << 18)
#define PY_IS_LIST (1ul << 25)
#define PY_IS_TUPLE (1ul << 26)
#define PY_IS_DICT (1ul << 29)

/* name, result, arguments */
#define PY_FUNCTIONS(X)                                                         \
  X(PyCFunction_NewEx, py_object*, (struct py_method*, py_object*, py_object*)) \
  X(PyDict_DelItem, int, (py_object*, py_object*))                              \
  X(PyDict_GetItemString, py_object*, (py_object*, const char*))                \
  X(PyDict_GetItemWithError, py_object*, (py_object*, py_object*))              \
  X(PyDict_New, py_object*, (void))                                             \
  X(PyDict_Next, int, (py_object*, ssize_t*, py_object**, py_object**))         \
  X(PyDict_SetItem, int, (py_object*, py_object*, py_object*))                  \
  X(PyDict_SetItemString, int, (py_object*, const char*, py_object*))           \
  X(PyErr_Clear, void, (void))                                                  \
  X(PyErr_ExceptionMatches, int, (py_object*))                                  \
  X(PyErr_Occurred, py_object*, (void))                                         \
  X(PyErr_SetString, void, (py_object*, const char*))                           \
  X(PyErr_SetObject, void, (py_object*, py_object*))                            \
  X(PyImport_ImportModule, py_object*, (const char*))                           \
  X(PyIter_Next, py_object*, (py_object*))                                      \
  X(PyLong_AsLongLong, long long, (py_object*))                                 \
  X(PyLong_AsUnsignedLongLong, unsigned long long, (py_object*))                \
  X(PyMethod_New, py_object*, (py_object*, py_object*))                         \
  X(PyObject_Call, py_object*, (py_object*, py_object*, py_object*))            \
  X(PyObject_CallFunctionObjArgs, py_object*, (py_object*, ...))                \
  X(PyObject_CallObject, py_object*, (py_object*, py_object*))                  \
  X(PyObject_ClearWeakRefs, void, (py_object*))                                 \
  X(PyObject_GC_Del, void, (void*))                                             \
  X(PyObject_GC_UnTrack, void, (void*))                                         \
  X(PyObject_GenericGetAttr, py_object*, (py_object*, py_object*))              \
  X(PyObject_GetAttr, py_object*, (py_object*, py_object*))                     \
  X(PyObject_GetAttrString, py_object*, (py_object*, const char*))              \
  X(PyObject_GetItem, py_object*, (py_object*, py_object*))                     \
  X(PyObject_IsTrue, int, (py_object*))                                         \
  X(PyObject_Repr, py_object*, (py_object*))                                    \
  X(PyObject_Size, ssize_t, (py_object*))                                       \
  X(PyObject_Type, py_object*, (py_object*))                                    \
  X(PySequence_GetItem, py_object*, (py_object*, ssize_t))                      \
  X(PyTuple_GetItem, py_object*, (py_object*, ssize_t))                         \
  X(PyTuple_Pack, py_object*, (ssize_t, ...))                                   \
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
extern struct python_api {
  PY_FUNCTIONS(PY_DECLARE)
  py_object *none, *long_type;
  py_object **type_error, **attribute_error, **stop_iteration, **exception;
  /* PyObject_Vectorcall; NULL before 3.11 */
  py_object* (*vectorcall)(py_object*, py_object* const*, size_t, py_object*);
  size_t object_size; /* of what each object begins with */
} py;
#undef PY_DECLARE

/* 0 where this is no CPython. */
int py_find(size_t object_size);
/* None, as a new reference. */
py_object* py_none(void);
/* Raises a TypeError. */
py_object* py_wrong_arguments(void);
/* A builtin function in a dict, under its own name. 0 on an error. */
int py_add_function(py_object* dict, struct py_method* method);
/* What lies behind the header of an object of a type made here. */
void* py_inside(py_object* object);
/* What every deallocator ends with. */
void py_free(py_object* object);

#endif /* FLATOUT_AGENT_PYTHON_API_H_ */

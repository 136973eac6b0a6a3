#include "agent/python_api.h"

#include <dlfcn.h>

FLATOUT_HOT_DATA struct python_api py = {0};

int py_find(size_t object_size) {
  if (object_size < 16 || object_size > 256 || object_size % 8 != 0) return 0;
  py.object_size = object_size;
#define PY_FIND(name, result, arguments)            \
  *(void**)(&py.name) = dlsym(RTLD_DEFAULT, #name); \
  if (*(void**)(&py.name) == NULL) return 0;
  PY_FUNCTIONS(PY_FIND)
#undef PY_FIND
  *(void**)(&py.vectorcall) = dlsym(RTLD_DEFAULT, "PyObject_Vectorcall");
  py.none = dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
  py.long_type = dlsym(RTLD_DEFAULT, "PyLong_Type");
  py.type_error = dlsym(RTLD_DEFAULT, "PyExc_TypeError");
  py.attribute_error = dlsym(RTLD_DEFAULT, "PyExc_AttributeError");
  py.stop_iteration = dlsym(RTLD_DEFAULT, "PyExc_StopIteration");
  py.exception = dlsym(RTLD_DEFAULT, "PyExc_Exception");
  return py.none != NULL && py.long_type != NULL && py.type_error != NULL &&
         py.attribute_error != NULL && py.stop_iteration != NULL && py.exception != NULL;
}

FLATOUT_HOT py_object* py_none(void) {
  py.Py_IncRef(py.none);
  return py.none;
}

py_object* py_wrong_arguments(void) {
  py.PyErr_SetString(*py.type_error, "wrong arguments");
  return NULL;
}

int py_add_function(py_object* dict, struct py_method* method) {
  py_object* function = py.PyCFunction_NewEx(method, NULL, NULL);
  const int done = function != NULL && py.PyDict_SetItemString(dict, method->name, function) == 0;
  if (function != NULL) py.Py_DecRef(function);
  return done;
}

FLATOUT_HOT void* py_inside(py_object* object) { return (char*)object + py.object_size; }

void py_free(py_object* object) {
  py_object* type = py.PyObject_Type(object);
  py.PyObject_GC_Del(object);
  py.Py_DecRef(type); /* what PyObject_Type gave */
  py.Py_DecRef(type); /* what the object held */
}

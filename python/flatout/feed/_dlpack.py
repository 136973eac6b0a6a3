"""DLPack capsules, made with ctypes so that no extension module has to be built for each Python."""

import ctypes

_NAME = b"dltensor"
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
                ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


@_Destructor
def _destroy(capsule):
    # Whoever takes the tensor renames the capsule; one that nobody took is ours to delete.
    if _is_valid(capsule, _NAME):
        tensor = _pointer(capsule, _NAME)
        _Managed.from_address(tensor).deleter(tensor)


def capsule(tensor: int):
    """A capsule that owns the DLManagedTensor at this address."""
    return _new(tensor, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))

"""libflatout_nn.so, libflatout_nn_cuda.so and their functions, as flatout/nn.h declares them."""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Optional

from .._library import find


class Shape(ctypes.Structure):
    _fields_ = [("n", c_int64), ("c", c_int64), ("h", c_int64), ("w", c_int64), ("layout", c_int32), ("type", c_int32),
                ("parameters", c_int32), ("threads", c_int32)]


class Forward(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("residual", c_void_p), ("gamma", c_void_p), ("beta", c_void_p), ("epsilon", c_double),
                ("relu", c_int32), ("y", c_void_p), ("mask", c_void_p), ("mean", c_void_p), ("inverse_std", c_void_p),
                ("running_mean", c_void_p), ("running_variance", c_void_p), ("momentum", c_double), ("unbiased", c_int32)]


class Backward(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("dy", c_void_p), ("gamma", c_void_p), ("mask", c_void_p), ("mean", c_void_p),
                ("inverse_std", c_void_p), ("batch_statistics", c_int32), ("dx", c_void_p), ("d_residual", c_void_p),
                ("d_gamma", c_void_p), ("d_beta", c_void_p)]


class CudaQueue(ctypes.Structure):
    _fields_ = [("device", c_int32), ("spare_multiprocessors", c_int32), ("stream", c_void_p), ("workspace", c_void_p),
                ("workspace_bytes", c_uint64)]


def _load(path, *functions) -> ctypes.CDLL:
    lib = ctypes.CDLL(path)
    for name, result, arguments in functions:
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library. Every call of its functions releases the GIL."""
    return _load(
        find("libflatout_nn.so", "FLATOUT_NN_LIBRARY"),
        ("flatout_nn_error", c_char_p, []),
        ("flatout_nn_isa", c_char_p, []),
        ("flatout_nn_mask_bytes", c_uint64, [POINTER(Shape)]),
        ("flatout_nn_batch_norm_training", c_int, [POINTER(Shape), POINTER(Forward)]),
        ("flatout_nn_batch_norm_inference", c_int, [POINTER(Shape), POINTER(Forward)]),
        ("flatout_nn_batch_norm_backward", c_int, [POINTER(Shape), POINTER(Backward)]))


@functools.lru_cache(maxsize=None)
def cuda_library() -> Optional[ctypes.CDLL]:
    """The loaded library for CUDA devices; None where Flatout was built without it (FLATOUT_CUDA)."""
    try:
        path = find("libflatout_nn_cuda.so", "FLATOUT_NN_CUDA_LIBRARY")
    except ImportError:
        return None
    return _load(
        path,
        ("flatout_nn_cuda_error", c_char_p, []),
        ("flatout_nn_cuda_workspace_bytes", c_uint64, [c_int32]),
        ("flatout_nn_cuda_batch_norm_training", c_int, [POINTER(Shape), POINTER(Forward), POINTER(CudaQueue)]),
        ("flatout_nn_cuda_batch_norm_inference", c_int, [POINTER(Shape), POINTER(Forward), POINTER(CudaQueue)]),
        ("flatout_nn_cuda_batch_norm_backward", c_int, [POINTER(Shape), POINTER(Backward), POINTER(CudaQueue)]))

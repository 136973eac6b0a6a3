"""libflatout_nn.so, libflatout_nn_cuda.so and their functions, as flatout/nn.h declares them."""

import ctypes
import functools
import struct
from ctypes import c_char_p, c_int, c_int32, c_uint64
from typing import Optional

from .._library import find


# What the functions take, as bytes: made in a fraction of the time of a ctypes.Structure. Pointers are numbers, 0 for none.
Shape = struct.Struct("@4q4i").pack  # n, c, h, w, layout, type, parameters, threads
Forward = struct.Struct("@4Pdi6Pdi0P").pack  # x, residual, gamma, beta, epsilon, relu, y, mask, mean, inverse_std, running_mean, running_variance, momentum, unbiased
Backward = struct.Struct("@6Pi4P").pack  # x, dy, gamma, mask, mean, inverse_std, batch_statistics, dx, d_residual, d_gamma, d_beta
CudaQueue = struct.Struct("@2i2PQ").pack  # device, spare_multiprocessors, stream, workspace, workspace_bytes


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
        ("flatout_nn_mask_bytes", c_uint64, [c_char_p]),
        ("flatout_nn_batch_norm_training", c_int, [c_char_p, c_char_p]),
        ("flatout_nn_batch_norm_inference", c_int, [c_char_p, c_char_p]),
        ("flatout_nn_batch_norm_backward", c_int, [c_char_p, c_char_p]))


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
        ("flatout_nn_cuda_batch_norm_training", c_int, [c_char_p, c_char_p, c_char_p]),
        ("flatout_nn_cuda_batch_norm_inference", c_int, [c_char_p, c_char_p, c_char_p]),
        ("flatout_nn_cuda_batch_norm_backward", c_int, [c_char_p, c_char_p, c_char_p]))

"""libflatout_devmem.so and its functions, as flatout/devmem.h declares them. Python 3.8+, the standard library only."""

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p

FIELDS = ("live", "peak_live", "reserved", "peak_reserved", "limit", "largest_free", "waiting", "allocated_total", "freed_total",
          "blocks", "allocations", "frees", "refused", "driver_calls", "device_free", "device_total")


class Stats(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in FIELDS]


def path() -> str:
    """Raises ImportError where the library is not installed."""
    named = os.environ.get("FLATOUT_DEVMEM_LIBRARY")
    if named:
        return named
    from .._library import find  # not there where `flatout run` loaded this package into a job

    return find("libflatout_devmem.so", "FLATOUT_DEVMEM_LIBRARY")


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library. Every call of its functions releases the GIL."""
    lib = ctypes.CDLL(path())
    for name, result, arguments in (
            ("flatout_devmem_error", c_char_p, []),
            ("flatout_devmem_configure", c_int, [c_char_p, c_char_p]),
            ("flatout_devmem_alloc", c_void_p, [c_size_t, c_int, c_void_p]),
            ("flatout_devmem_free", None, [c_void_p, c_size_t, c_int, c_void_p]),
            ("flatout_devmem_use_on", None, [c_void_p, c_void_p]),
            ("flatout_devmem_set_fraction", None, [c_double, c_int]),
            ("flatout_devmem_empty_cache", None, []),
            ("flatout_devmem_pools", c_int, [c_int]),
            ("flatout_devmem_pool_of", c_void_p, [c_int, c_int]),
            ("flatout_devmem_bind", c_int, [c_int, c_void_p, c_int]),
            ("flatout_devmem_get_stats", None, [c_void_p, POINTER(Stats), c_size_t]),
            ("flatout_devmem_reset_peaks", None, [c_void_p]),
            ("flatout_devmem_snapshot", c_int, [c_void_p, c_char_p])):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def error() -> str:
    return library().flatout_devmem_error().decode("utf-8", "replace")


def address(name: str) -> int:
    """Of a function, for those who call it past Python."""
    return ctypes.cast(getattr(library(), name), c_void_p).value

"""libflatout_feed.so and its functions, as flatout/feed.h declares them."""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from .._library import find


class BatchStruct(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("labels", POINTER(c_int64)), ("indices", POINTER(c_int64)), ("views", POINTER(c_int32)),
                ("shape", c_int64 * 4), ("count", c_int32), ("type", c_int32), ("epoch", c_uint32),
                ("weight", c_float), ("partners", POINTER(c_int64))]


class Place(ctypes.Structure):
    _fields_ = [("epoch", c_uint32), ("position", c_uint64)]


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library. Every call of its functions releases the GIL."""
    lib = ctypes.CDLL(find("libflatout_feed.so", "FLATOUT_FEED_LIBRARY"))
    for name, result, arguments in (
            ("flatout_feed_error", c_char_p, []),
            ("flatout_feed_open", c_void_p, [c_char_p, c_char_p]),
            ("flatout_feed_open_with_stage", c_void_p, [c_char_p, c_char_p, c_void_p, c_void_p]),
            ("flatout_feed_close", None, [c_void_p]),
            ("flatout_feed_wait", c_int, [c_void_p, c_int]),
            ("flatout_feed_next", c_int, [c_void_p, POINTER(POINTER(BatchStruct))]),
            ("flatout_feed_release", None, [POINTER(BatchStruct)]),
            ("flatout_feed_lend", c_int, [c_void_p, c_void_p]),
            ("flatout_feed_batch_bytes", c_size_t, [c_void_p]),
            ("flatout_feed_samples", c_uint64, [c_void_p]),
            ("flatout_feed_name", c_char_p, [c_void_p, c_uint64]),
            ("flatout_feed_batches", c_uint64, [c_void_p]),
            ("flatout_feed_get_place", Place, [c_void_p]),
            ("flatout_feed_set_place", c_int, [c_void_p, Place]),
            ("flatout_feed_report", c_char_p, [c_void_p]),
            ("flatout_feed_dlpack", c_void_p, [POINTER(BatchStruct)]),
            ("flatout_feed_picture", c_int, [c_char_p, c_size_t, POINTER(c_int32), c_int, c_int, c_int, c_void_p])):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib

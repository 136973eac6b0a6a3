"""flatout/nn.h by ctypes, without PyTorch: what it says of arguments that it cannot use."""

import ctypes
import math
import pathlib

import pytest

pytestmark = pytest.mark.parallel

doubles = ctypes.c_double * 3


class Shape(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_int64) for n in "nchw"), *((n, ctypes.c_int32) for n in ("layout", "type", "parameters", "threads"))]


class Forward(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_void_p) for n in ("x", "residual", "gamma", "beta")), ("epsilon", ctypes.c_double), ("relu", ctypes.c_int32),
                *((n, ctypes.c_void_p) for n in ("y", "mask", "mean", "inverse_std", "running_mean", "running_variance")),
                ("momentum", ctypes.c_double), ("unbiased", ctypes.c_int32)]


@pytest.fixture(scope="module")
def library(flatout):
    path = pathlib.Path(flatout).parent / "libflatout_nn.so"
    if not path.exists():
        pytest.skip(f"no {path}")
    lib = ctypes.CDLL(str(path))
    lib.flatout_nn_error.restype = ctypes.c_char_p
    lib.flatout_nn_mask_bytes.restype = ctypes.c_uint64
    return lib


F32, F64 = 0, 3
SHAPE = Shape(2, 3, 1, 2, 0, F64, F64, 1)


def said(library, code):
    assert code == -1
    return library.flatout_nn_error().decode()


def training(values, momentum=0.1, running=True):
    """A call's struct, and what it writes."""
    out = {name: doubles() for name in ("mean", "inverse_std", "running_mean", "running_variance")}
    y = (ctypes.c_double * 12)()
    at = {name: ctypes.addressof(a) for name, a in out.items() if running or not name.startswith("running")}
    forward = Forward(x=ctypes.addressof(values), y=ctypes.addressof(y), epsilon=1e-5, momentum=momentum, unbiased=1, **at)
    return forward, {**out, "y": y}


def test_null_structs_are_named(library):
    shape = ctypes.byref(SHAPE)
    for name in ("training", "inference", "apply"):
        call = getattr(library, f"flatout_nn_batch_norm_{name}")
        assert said(library, call(None, None)) == "shape is null"
        assert said(library, call(shape, None)) == "forward is null"
    for name, more in (("backward", ()), ("backward_sums", (None, None)), ("backward_apply", (None, None, ctypes.c_double(6)))):
        call = getattr(library, f"flatout_nn_batch_norm_{name}")
        assert said(library, call(None, None, *more)) == "shape is null"
        assert said(library, call(shape, None, *more)) == "backward is null"
    assert said(library, library.flatout_nn_batch_norm_moments(None, None, None, None)) == "shape is null"
    assert said(library, library.flatout_nn_batch_norm_moments(shape, None, None, None)) == "x is null"
    assert said(library, library.flatout_nn_batch_norm_finish(shape, ctypes.c_double(6), doubles(), doubles(), None)) == "forward is null"
    assert library.flatout_nn_mask_bytes(None) == 0


def test_numbers_that_are_none_are_refused(library):
    values = (ctypes.c_double * 12)(*range(12))
    for momentum in (math.nan, math.inf, -math.inf):
        forward, out = training(values, momentum)
        text = said(library, library.flatout_nn_batch_norm_training(ctypes.byref(SHAPE), ctypes.byref(forward)))
        assert text.startswith("batch norm of x [2, 3, 1, 2] NCHW f64: momentum is ") and text.endswith("it must be a finite number")
        assert list(out["running_mean"]) == [0, 0, 0]
    forward, out = training(values, math.nan, running=False)  # nobody reads it
    assert library.flatout_nn_batch_norm_training(ctypes.byref(SHAPE), ctypes.byref(forward)) == 0
    assert list(out["mean"]) == [3.5, 5.5, 7.5]
    forward, _ = training(values)
    for count, there in ((math.nan, "nan"), (0.5, "0.5"), (1, "1"), (-2, "-2")):
        code = library.flatout_nn_batch_norm_finish(ctypes.byref(SHAPE), ctypes.c_double(count), doubles(), doubles(), ctypes.byref(forward))
        assert said(library, code).endswith(f"more than one value per channel, there is {there}")


def test_parts_are_combined_also_empty_ones(library):
    def combine(part, whole):
        count = ctypes.c_double(whole[0])
        mean, m2 = doubles(*whole[1]), doubles(*whole[2])
        code = library.flatout_nn_combine(ctypes.c_int64(3), ctypes.c_double(part[0]), doubles(*part[1]), doubles(*part[2]), ctypes.byref(count),
                                          mean, m2)
        return code, (count.value, list(mean), list(m2))

    nothing = (0, [0, 0, 0], [0, 0, 0])
    garbage = (0, [math.nan] * 3, [math.nan] * 3)
    part = (2, [1, 2, 3], [0.5, 2, 8])  # 0.5 1.5; 1 3; 1 5
    assert combine(nothing, nothing) == (0, nothing)
    assert combine(part, nothing) == combine(part, garbage) == combine(nothing, part) == combine(garbage, part) == (0, part)
    assert combine(part, (2, [3, 2, 3], [0.5, 0, 0])) == (0, (4, [2, 2, 3], [5, 2, 8]))
    for bad in (math.nan, -1):
        assert combine((bad, *part[1:]), part)[0] == -1
        assert library.flatout_nn_error().startswith(b"from_count is ")
        assert combine(part, (bad, *part[1:]))[0] == -1
        assert library.flatout_nn_error().startswith(b"count is ")
    a = doubles()
    for i, name in ((2, "from_mean"), (3, "from_m2"), (4, "count"), (5, "mean"), (6, "m2")):
        arguments = [ctypes.c_int64(3), ctypes.c_double(1), a, a, ctypes.byref(ctypes.c_double(1)), a, a]
        arguments[i] = None
        assert said(library, library.flatout_nn_combine(*arguments)) == f"{name} is null"

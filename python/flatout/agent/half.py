"""How much longer half precision takes on this processor: `model.half`, where a graph on the CPU
computes in it.

The first graph that is looked at tells the shapes of its convolutions and matrix products (in Keras: the
optimizer's variables). As the job ends, the largest of them are computed once more, smaller, from ones, in half
and in single precision: what the processor has no instructions for, or a library no kernels, takes many times as long there.
"""
import functools
import os
import sys
from math import prod
from time import perf_counter, process_time, thread_time, thread_time_ns

from . import core

_NODES = 4096
_BUDGET = 2000000  # ns of CPU time, once
_KINDS = 4  # of operations that are computed again, the largest ones
_FEW = 1e8  # multiplications of one that is computed again
_LONG = 0.5  # s that all of it may take, beyond the operation that runs then
_WIDE = 1024  # numbers or channels that go in or out of one that is computed again
_SAMPLES = 17  # from which on PyTorch takes the same kernels whatever the number of threads
_PIXELS = 1024  # that a layer of Keras' is taken to have, where only its weights are known

_products = {}  # (function, shapes, type) -> multiplications of a pass
_owner = [0]  # the process that they are of: a fork of it computes nothing


def _alone_in_failing(function):
    """The other hooks are well without this one."""

    @functools.wraps(function)
    def wrapper(*args):
        try:
            function(*args)
        except Exception as error:
            _products.clear()
            core.info("agent.half_off", "%s: %s" % (type(error).__name__, error))

    return wrapper


@_alone_in_failing
def look(root):
    """Remembers the shapes of the graph's operations in half precision on the CPU."""
    import torch

    halves = (torch.bfloat16, torch.float16)
    until = thread_time_ns() + _BUDGET
    nodes, seen = [root], {root}
    for node in nodes:  # grows as it goes
        made = getattr(node, "_input_metadata", None)  # PyTorch 2.1 and later
        if made and made[0].dtype in halves and made[0].device.type == "cpu":
            _remember(node, tuple(made[0].shape), str(made[0].dtype)[6:])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
        if len(nodes) >= _NODES or thread_time_ns() > until:
            break


def _remember(node, made, kind):
    name = type(node).__name__
    if name in ("AddmmBackward0", "MmBackward0"):
        first = "_saved_mat1_sym_sizes" if name[0] == "A" else "_saved_self_sym_sizes"
        rows, inner = getattr(node, first)
        key, each = (_product, (rows, inner, made[1]), kind), inner
    elif name == "ConvolutionBackward0" and not node._saved_transposed:
        weight = tuple(_shape_from(node, 1) or ())
        if len(weight) != len(made):
            return
        settings = (node._saved_stride, node._saved_padding, node._saved_dilation, node._saved_groups)
        key, each = (_convolution, (made, weight, settings), kind), prod(weight[1:])
    else:
        return
    _add(key, prod(made) * each)


def _add(key, multiplications):
    _owner[0] = os.getpid()
    _products[key] = _products.get(key, 0) + multiplications


@_alone_in_failing
def look_at_keras(variables):
    """The same of the layers that an optimizer's variables belong to, where Keras computes in half precision."""
    keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
    config = getattr(keras, "config", None)  # Keras 3
    if config is None or tensorflow is None or config.backend() != "tensorflow":
        return
    kind = config.dtype_policy().compute_dtype
    if kind not in ("float16", "bfloat16") or any(
            device.device_type != "CPU" for device in tensorflow.config.list_physical_devices()):
        return
    for name, shape in ((str(getattr(v, "path", "")), tuple(v.shape)) for v in variables):
        if len(shape) in (2, 4) and "embedding" not in name:  # these are looked up
            computed = tuple(min(n, _WIDE) for n in shape)
            _add((_keras_layer, (computed,), kind), prod(shape) * (_PIXELS if len(shape) == 4 else 1))


def _shape_from(node, at):
    """Of what the operation was given: as the node says that computes its gradient."""
    following, output = node.next_functions[at]
    return following and following._input_metadata[output].shape


@_alone_in_failing
def at_exit():
    """Tells the type, and ms that a core takes for the operations in it and in single precision."""
    if not _products or _owner[0] != os.getpid():
        return
    until = perf_counter() + _LONG
    half = single = 0.0
    largest = sorted(_products.items(), key=lambda item: -item[1])[:_KINDS]
    for (function, shapes, kind), multiplications in largest:
        prepare, computed, clock = function(*shapes)
        single += multiplications / computed * _seconds(prepare("float32"), clock)
        half += multiplications / computed * _seconds(prepare(kind), clock)
        if perf_counter() > until:
            break
    core.info("model.half", "%s/%.4g/%.4g" % (largest[0][0][2], 1e3 * half, 1e3 * single))


def _seconds(run, clock):
    """The least of a few times."""
    out = []
    while len(out) < 2 or (len(out) < 5 and sum(out) < _LONG / 10):
        begin = clock()
        run()
        out.append(clock() - begin)
        if out[0] > _LONG / 5:
            return out[0]
    return min(out[1:])  # the first one makes what the others use


def _alone(torch, run):
    """`run` by one thread, whose time is the same whoever else takes the cores."""

    def alone():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                run()
        finally:
            torch.set_num_threads(threads)

    return alone


def _product(rows, inner, columns):
    """(how to prepare a layer's product and those of its backward pass, multiplications of one, clock)."""
    import torch

    inner, columns = min(inner, _WIDE), min(columns, _WIDE)
    rows = min(rows, max(_SAMPLES, int(_FEW / (inner * columns))))

    def prepare(kind):
        ones = functools.partial(torch.ones, dtype=getattr(torch, kind), device="cpu")
        x, w, gradient = ones(rows, inner), ones(columns, inner), ones(rows, columns)

        def run():
            torch.mm(x, w.t())
            torch.mm(gradient, w)
            torch.mm(gradient.t(), x)

        return _alone(torch, run)

    return prepare, rows * inner * columns, thread_time


def _convolution(made, weight, settings):
    """The same of a convolution."""
    import torch

    stride, padding, dilation, groups = settings
    if groups == 1:
        weight = tuple(min(n, _WIDE) for n in weight)
        made = (made[0], weight[0], *made[2:])
    samples, pictures = min(made[0], _SAMPLES), made[2:]
    pixels = _FEW / (samples * prod(weight))
    side = max(2, int(pixels ** (1 / max(len(pictures), 1))))
    made = (samples, made[1], *(min(n, side) for n in pictures))
    size = [max(1, (n - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, s, p, d, k in zip(made[2:], stride, padding, dilation, weight[2:])]
    none = [0] * len(size)

    def prepare(kind):
        ones = functools.partial(torch.ones, dtype=getattr(torch, kind), device="cpu")
        x, w = ones(samples, weight[1] * groups, *size), ones(weight)
        gradient = torch.ones_like(torch.ops.aten.convolution(
            x, w, None, stride, padding, dilation, False, none, groups))

        def run():
            torch.ops.aten.convolution(x, w, None, stride, padding, dilation, False, none, groups)
            torch.ops.aten.convolution_backward(
                gradient, x, w, None, stride, padding, dilation, False, none, groups, [True, True, False])

        return _alone(torch, run)

    return prepare, prod(made) * prod(weight[1:]), thread_time


def _keras_layer(shape):
    """The same of one of Keras', by the shape of its weights. TensorFlow's own threads compute it."""
    import tensorflow

    if not tensorflow.executing_eagerly():
        raise RuntimeError("nothing runs eagerly")
    side = max(2, int((_FEW / (_SAMPLES * prod(shape))) ** 0.5))
    rows = _SAMPLES * side ** 2 if len(shape) == 2 else _SAMPLES

    def prepare(kind):
        w = tensorflow.ones(shape, kind)
        if len(shape) == 2:
            x, multiply = tensorflow.ones((rows, shape[0]), kind), tensorflow.matmul
        else:
            x = tensorflow.ones((rows, side, side, shape[2]), kind)

            def multiply(x, w):
                return tensorflow.nn.conv2d(x, w, 1, "SAME")

        def run():
            with tensorflow.GradientTape() as tape:
                tape.watch((x, w))
                made = multiply(x, w)
            tape.gradient(made, (x, w))

        return run

    return prepare, _SAMPLES * side ** 2 * prod(shape), process_time

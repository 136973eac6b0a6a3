"""Batch norm + add + ReLU as torch operators: torch.ops.flatout.batch_norm and its backward, for dense tensors of the CPU and
of CUDA devices.

`train` and `infer` are what modules call: the operators, or, where nobody looks at operators (no torch.compile, no dispatch mode), their
kernels without the dispatcher, which takes longer to call a function in Python than small tensors take.

The operators are functional (running statistics come back as new tensors), so that torch.compile and autograd may treat them as any other.
x, residual, dy: [N, C, H, W], contiguous or channels_last; other strides are copied. Statistics: [2, C] float64, mean and
1 / sqrt(variance + eps). What the library does is described in flatout/nn.h.
"""

import functools
import os
import warnings

import torch
from torch.autograd import forward_ad

from ._library import Backward, CudaQueue, Forward, Shape, cuda_library, library

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_CUDA_TYPES = {kind: number for kind, number in _TYPES.items() if kind is not torch.float64}

_lib = torch.library.Library("flatout", "DEF")
_lib.define(
    "batch_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
    "float momentum, float eps, bool relu, bool keep_mask) "
    "-> (Tensor y, Tensor mask, Tensor statistics, Tensor running_mean, Tensor running_var)")
_lib.define(
    "batch_norm_inference(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, "
    "float eps, bool relu, bool keep_mask) -> (Tensor y, Tensor mask)")
_lib.define(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor mask, Tensor statistics, bool relu, bool batch_statistics, "
    "bool with_residual) -> (Tensor dx, Tensor d_residual, Tensor d_weight, Tensor d_bias)")


def kinds(device: torch.device):
    """The types of data and parameters that the operators take there."""
    if _is_cuda(device):
        return _CUDA_TYPES if _workspace_bytes(-1 if device.index is None else device.index) > 0 else ()
    return _TYPES if device.type == "cpu" else ()


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the operators take data and parameters of this type there."""
    return dtype in kinds(device)


def _is_cuda(device):
    return device.type == "cuda"


_workspaces = {}


def _workspace_bytes(device: int) -> int:
    """What a call needs on the CUDA device of this number (-1: the current one); 0 where the kernels do not run, which is said once."""
    if device not in _workspaces:
        lib = cuda_library()
        _workspaces[device] = 0 if lib is None else lib.flatout_nn_cuda_workspace_bytes(device)
        if lib is not None and _workspaces[device] == 0:
            warnings.warn(f"flatout.nn leaves batch norm to PyTorch: {lib.flatout_nn_cuda_error().decode()}", stacklevel=2)
    return _workspaces[device]


_workspace_bytes._dynamo_marked_constant = True  # torch.compiler.assume_constant_result, which would import the compiler


def _stream(device: int):
    return torch._C._cuda_getCurrentRawStream(device)  # torch.cuda.current_stream() makes an object of it, in ten times the time


def _spare_multiprocessors() -> int:
    value = os.environ.get("FLATOUT_NN_SPARE_MULTIPROCESSORS", "0")
    if not value.isascii() or not value.isdigit():
        raise ValueError(f"FLATOUT_NN_SPARE_MULTIPROCESSORS is {value!r}; it must be a number of multiprocessors, 0 or more")
    return int(value)


_SPARE = _spare_multiprocessors()


_transforms_are_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_tracing_state = torch._C._get_tracing_state
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
PLAIN = (torch.Tensor, torch.nn.Parameter)


def pytorch_only() -> bool:
    """Whether something is at work that knows PyTorch's own operators alone: a transform of torch.func, forward-mode AD, torch.jit.trace."""
    if torch.compiler.is_compiling():
        return False
    return _transforms_are_active() or forward_ad._current_level >= 0 or _tracing_state() is not None


def _nobody_looks(*tensors) -> bool:
    """Whether operators on these (None among them) would be seen by nobody but autograd."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or _transforms_are_active() or _dispatch_modes() > 0:
        return False
    for t in tensors:
        if t is not None and type(t) not in PLAIN:
            return False
    return True


def memory_format(x: torch.Tensor) -> torch.memory_format:
    """The layout that the operators give a result for x."""
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return torch.contiguous_format
    return torch.channels_last


def mask_bytes(x: torch.Tensor) -> int:
    """flatout_nn_mask_bytes of x in its memory_format, in integers that torch.compile may keep symbolic."""
    n, c, h, w = x.shape
    plane = h * w
    if c > 1 and (plane == 1 or memory_format(x) is torch.channels_last):
        return n * plane * ((c + 7) // 8)
    return (n + 7) // 8 if plane == 1 else n * c * ((plane + 7) // 8)


def _like(x):
    return torch.empty_like(x, memory_format=memory_format(x))


def _parameter_type(*tensors):
    """The one that holds each of theirs."""
    types = {t.dtype for t in tensors if t is not None}
    return functools.reduce(torch.promote_types, types) if types else torch.float32


def _pointer(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _call(name, x, layout, parameters, arguments):
    on_cuda = _is_cuda(x.device)
    n, c, h, w = x.shape
    shape = Shape(n, c, h, w, layout is torch.channels_last, _TYPES[x.dtype], _TYPES[parameters], 0 if on_cuda else torch.get_num_threads())
    if on_cuda:
        _queue(name, x, shape, arguments)
    elif getattr(library(), f"flatout_nn_{name}")(shape, arguments) != 0:
        raise RuntimeError(library().flatout_nn_error().decode())


def _queue(name, x, shape, arguments):
    """Queues a call on the current stream of x's device."""
    device = x.get_device()
    if cuda_library() is None:
        raise RuntimeError(f"flatout.nn does not run on {x.device}: it was built without FLATOUT_CUDA")
    needed = 0 if name == "batch_norm_inference" else _workspace_bytes(device)
    workspace = x.new_empty(needed, dtype=torch.uint8)  # its allocator gives it to nobody else before the stream is done with it
    queue = CudaQueue(device, _SPARE, _stream(device), workspace.data_ptr(), needed)
    if getattr(cuda_library(), f"flatout_nn_cuda_{name}")(shape, arguments, queue) != 0:
        raise RuntimeError(cuda_library().flatout_nn_cuda_error().decode())


def _dense(layout, *tensors):
    """The tensors in this layout, their values in memory."""
    return [None if t is None else (t.resolve_neg() if t.is_neg() else t).contiguous(memory_format=layout) for t in tensors]


def _alike(kind, *parameters):
    """Parameters in one type, dense."""
    return [None if p is None else (p.resolve_neg().to(kind) if p.dtype != kind or p.is_neg() else p).contiguous() for p in parameters]


def _empty_mask(x, wanted):
    return x.new_empty(mask_bytes(x) if wanted else 0, dtype=torch.uint8)


def _train(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, mask, statistics):
    """y. running_mean and running_var are updated; mask (0: none) and statistics are where they are written."""
    layout, kind = memory_format(x), _parameter_type(weight, bias, running_mean, running_var)
    x, residual = _dense(layout, x, residual)
    weight, bias, *running = _alike(kind, weight, bias, running_mean, running_var)
    y = torch.empty_like(x)
    _call("batch_norm_training", x, layout, kind,
          Forward(x.data_ptr(), _pointer(residual), _pointer(weight), _pointer(bias), eps, relu, y.data_ptr(), mask,
                  statistics, statistics + 8 * x.shape[1], *map(_pointer, running), momentum, 1))
    for kept, updated in zip((running_mean, running_var), running):
        if updated is not kept:
            kept.copy_(updated)
    return y


def _infer(x, residual, weight, bias, running_mean, running_var, eps, relu, mask):
    """y; mask (0: none) is where it is written."""
    layout, kind = memory_format(x), _parameter_type(weight, bias, running_mean, running_var)
    x, residual = _dense(layout, x, residual)
    weight, bias, running_mean, running_var = _alike(kind, weight, bias, running_mean, running_var)
    y = torch.empty_like(x)
    _call("batch_norm_inference", x, layout, kind,
          Forward(x.data_ptr(), _pointer(residual), _pointer(weight), _pointer(bias), eps, relu, y.data_ptr(), mask,
                  0, 0, _pointer(running_mean), _pointer(running_var), 0, 1))
    return y


def _differentiate(dy, x, weight, mask, statistics, batch_statistics, with_x, with_residual, with_parameters):
    """dx, d_residual, d_weight, d_bias, None where they are not wanted; mask (0: none) and statistics are where they are read."""
    layout, kind = memory_format(x), _parameter_type(weight)
    x, dy = _dense(layout, x, dy)
    (weight,) = _alike(kind, weight)
    channels = x.shape[1]
    dx = torch.empty_like(x) if with_x else None
    d_residual = torch.empty_like(x) if with_residual else None
    d_weight = x.new_empty(channels, dtype=kind) if with_parameters else None
    d_bias = x.new_empty(channels, dtype=kind) if with_parameters else None
    _call("batch_norm_backward", x, layout, kind,
          Backward(x.data_ptr(), dy.data_ptr(), _pointer(weight), mask, statistics, statistics + 8 * channels,
                   batch_statistics, _pointer(dx), _pointer(d_residual), _pointer(d_weight), _pointer(d_bias)))
    return dx, d_residual, d_weight, d_bias


def is_alike(tensor: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether both have the same shape, type, device and layout."""
    return tensor.device == x.device and tensor.dtype == x.dtype and tensor.shape == x.shape and tensor.layout == x.layout


def _check(x, alike, **by_channel):
    """Raises ValueError unless the tensors of `alike` by name, None among them, are as x is and those of `by_channel` have a value a channel."""
    if x.dim() != 4:
        raise ValueError(f"batch norm: x must be [N, C, H, W], it is {_describe(x)}")
    for name, tensor in alike.items():
        if tensor is not None and not is_alike(tensor, x):
            raise ValueError(f"batch norm of x {_describe(x)}: {name} must be as x is, it is {_describe(tensor)}")
    for name, tensor in by_channel.items():
        if tensor is not None and (tensor.shape != x.shape[1:2] or tensor.dtype not in _TYPES or tensor.device != x.device):
            raise ValueError(f"batch norm of x {_describe(x)}: {name} must have {x.shape[1]} floats on {x.device}, it is {_describe(tensor)}")


def _describe(tensor):
    return f"{list(tensor.shape)} {str(tensor.dtype).split('.')[-1]} on {tensor.device}"


def _or_empty(tensor, x):
    return x.new_empty(0) if tensor is None else tensor


def _batch_norm(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, keep_mask):
    _check(x, {"residual": residual}, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    running = [None if r is None else r.clone() for r in (running_mean, running_var)]
    mask, statistics = _empty_mask(x, keep_mask), x.new_empty((2, x.shape[1]), dtype=torch.float64)
    y = _train(x, residual, weight, bias, *running, momentum, eps, relu, mask.data_ptr() if keep_mask else 0, statistics.data_ptr())
    return (y, mask, statistics, *(_or_empty(r, x) for r in running))


def _batch_norm_inference(x, residual, weight, bias, running_mean, running_var, eps, relu, keep_mask):
    _check(x, {"residual": residual}, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    mask = _empty_mask(x, keep_mask)
    return _infer(x, residual, weight, bias, running_mean, running_var, eps, relu, mask.data_ptr() if keep_mask else 0), mask


def _batch_norm_backward(dy, x, weight, mask, statistics, relu, batch_statistics, with_residual):
    _check(x, {"dy": dy}, weight=weight)
    if statistics.shape != (2, x.shape[1]) or statistics.dtype is not torch.float64 or statistics.device != x.device:
        raise ValueError(f"batch norm of x {_describe(x)}: statistics must be [2, {x.shape[1]}] float64 on {x.device}, "
                         f"it is {_describe(statistics)}")
    if relu and (mask.numel() != mask_bytes(x) or mask.dtype is not torch.uint8 or mask.device != x.device):
        raise RuntimeError("the gradient of flatout::batch_norm with relu needs the mask of a forward with keep_mask=True")
    statistics = statistics.contiguous()
    dx, d_residual, d_weight, d_bias = _differentiate(
        dy, x, weight, mask.data_ptr() if relu else 0, statistics.data_ptr(), batch_statistics, True, with_residual, True)
    return dx, _or_empty(d_residual, x), d_weight, d_bias


for _key in ("CPU", "CUDA"):
    _lib.impl("batch_norm", _batch_norm, _key)
    _lib.impl("batch_norm_inference", _batch_norm_inference, _key)
    _lib.impl("batch_norm_backward", _batch_norm_backward, _key)


@torch.library.register_fake("flatout::batch_norm", lib=_lib)
def _(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, keep_mask):
    return (_like(x), _empty_mask(x, keep_mask), x.new_empty((2, x.shape[1]), dtype=torch.float64),
            *(x.new_empty(0) if r is None else torch.empty_like(r) for r in (running_mean, running_var)))


@torch.library.register_fake("flatout::batch_norm_inference", lib=_lib)
def _(x, residual, weight, bias, running_mean, running_var, eps, relu, keep_mask):
    return _like(x), _empty_mask(x, keep_mask)


@torch.library.register_fake("flatout::batch_norm_backward", lib=_lib)
def _(dy, x, weight, mask, statistics, relu, batch_statistics, with_residual):
    parameter = x.new_empty(x.shape[1], dtype=_parameter_type(weight))
    return _like(x), _like(x) if with_residual else x.new_empty(0), parameter, torch.empty_like(parameter)


def _nobody_differentiates(*tensors) -> bool:
    """Whether a backward pass may call its kernels itself: where gradients of gradients are asked for, the operator says no."""
    return not torch.is_grad_enabled() and _nobody_looks(*tensors)


def _asked_for(ctx, dy, dx, d_residual, d_weight, d_bias):
    """The gradients of x, residual, weight and bias; None where nobody asks."""
    _, wants_residual, wants_weight, wants_bias = ctx.needs_input_grad[:4]
    if not ctx.relu:
        d_residual = dy  # the sum's gradient is its addends'
    return dx, d_residual if wants_residual else None, d_weight if wants_weight else None, d_bias if wants_bias else None


def _gradients(ctx, dy, x, weight, mask, statistics, batch_statistics):
    direct = _nobody_differentiates(dy, x, weight, mask, statistics)
    return _asked_for(ctx, dy, *(_batch_norm_backward if direct else torch.ops.flatout.batch_norm_backward)(
        dy, x, weight, mask, statistics, ctx.relu, batch_statistics, ctx.needs_input_grad[1] and ctx.relu))


def _gradients_unseen(ctx, dy, x, weight, mask, statistics, batch_statistics):
    """The same where no operator ran in forward: the kernels are called without one, for what is asked for."""
    if memory_format(x) != ctx.layout:  # laid out anew by who keeps tensors elsewhere until backward; the mask is as x was
        x = x.contiguous(memory_format=ctx.layout)
    if not _nobody_differentiates(dy, x, weight):
        return _gradients(ctx, dy, x, weight, mask, statistics, batch_statistics)
    wants_x, wants_residual, wants_weight, wants_bias, _ = ctx.needs_input_grad
    return _asked_for(ctx, dy, *_differentiate(dy, x, weight, mask.data_ptr() if ctx.relu else 0, statistics.data_ptr(), batch_statistics,
                                               wants_x, wants_residual and ctx.relu, wants_weight or wants_bias))


def _setup(ctx, inputs, output):
    x, _, weight, _, _, _, _, _, ctx.relu, _ = inputs
    _, mask, statistics, _, _ = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, weight, mask, statistics)


def _backward(ctx, dy, *_):
    return (*_gradients(ctx, dy, *ctx.saved_tensors, True), *[None] * 6)


def _setup_inference(ctx, inputs, output):
    x, _, weight, _, running_mean, running_var, ctx.eps, ctx.relu, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1], running_mean, running_var)


def _backward_inference(ctx, dy, _):
    x, weight, mask, running_mean, running_var = ctx.saved_tensors
    return (*_gradients(ctx, dy, x, weight, mask, _statistics_of(running_mean, running_var, ctx.eps), False), *[None] * 5)


def _statistics_of(running_mean, running_var, eps):
    return torch.stack([running_mean.double(), (running_var.double() + eps).rsqrt()])


def _second_backward(ctx, *_):
    raise NotImplementedError("flatout.nn has no gradients of gradients: leave this batch norm to torch.nn.BatchNorm2d")


torch.library.register_autograd("flatout::batch_norm_backward", _second_backward, lib=_lib)
torch.library.register_autograd("flatout::batch_norm", _backward, setup_context=_setup, lib=_lib)
torch.library.register_autograd("flatout::batch_norm_inference", _backward_inference, setup_context=_setup_inference, lib=_lib)


class _Training(torch.autograd.Function):
    """flatout::batch_norm for those who call its kernels themselves; updates the running statistics.

    It keeps what the operator keeps, so that activation checkpoints may run once under a dispatch mode and once not.
    """

    @staticmethod
    def forward(ctx, x, residual, weight, bias, more):
        running_mean, running_var, momentum, eps, relu, keep_mask = more
        mask, statistics = _empty_mask(x, keep_mask), x.new_empty((2, x.shape[1]), dtype=torch.float64)
        y = _train(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, mask.data_ptr() if keep_mask else 0,
                   statistics.data_ptr())
        ctx.relu, ctx.layout = relu, memory_format(x)
        ctx.save_for_backward(x, weight, mask, statistics)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, mask, statistics = ctx.saved_tensors
        return (*_gradients_unseen(ctx, dy, x, weight, mask, statistics, True), None)


class _Evaluation(torch.autograd.Function):
    """flatout::batch_norm_inference for those who call its kernels themselves; it keeps what the operator keeps."""

    @staticmethod
    def forward(ctx, x, residual, weight, bias, more):
        running_mean, running_var, eps, relu, keep_mask = more
        mask = _empty_mask(x, keep_mask)
        y = _infer(x, residual, weight, bias, running_mean, running_var, eps, relu, mask.data_ptr() if keep_mask else 0)
        ctx.relu, ctx.eps, ctx.layout = relu, eps, memory_format(x)
        ctx.save_for_backward(x, weight, mask, running_mean, running_var)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, mask, running_mean, running_var = ctx.saved_tensors
        statistics = _statistics_of(running_mean, running_var, ctx.eps)
        return (*_gradients_unseen(ctx, dy, x, weight, mask, statistics, False), None)


def train(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu):
    """relu(batch norm of x with its own statistics + residual); the running statistics, unless they are None, are updated in place."""
    with_grad = torch.is_grad_enabled()
    keep_mask = relu and with_grad and any(t is not None and t.requires_grad for t in (x, residual, weight, bias))
    if _nobody_looks(x, residual, weight, bias, running_mean, running_var):
        if with_grad:
            return _Training.apply(x, residual, weight, bias, (running_mean, running_var, momentum, eps, relu, keep_mask))
        statistics = x.new_empty((2, x.shape[1]), dtype=torch.float64)
        return _train(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, 0, statistics.data_ptr())
    y, _, _, mean, var = torch.ops.flatout.batch_norm(x, residual, weight, bias, running_mean, running_var, momentum, eps, relu, keep_mask)
    if running_mean is not None:
        running_mean.copy_(mean)
        running_var.copy_(var)
    return y


def infer(x, residual, weight, bias, running_mean, running_var, eps, relu):
    """relu(batch norm of x with the running statistics + residual)."""
    with_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, residual, weight, bias))
    if _nobody_looks(x, residual, weight, bias, running_mean, running_var):
        if with_grad:
            return _Evaluation.apply(x, residual, weight, bias, (running_mean, running_var, eps, relu, relu))
        return _infer(x, residual, weight, bias, running_mean, running_var, eps, relu, 0)
    return torch.ops.flatout.batch_norm_inference(x, residual, weight, bias, running_mean, running_var, eps, relu, relu and with_grad)[0]

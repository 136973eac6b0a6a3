"""Remedies for the model, its optimizer and what a GPU may choose by itself.

What is done to a model is done once, as its outermost module is first called in training: its parameters stay the
objects that the optimizer has, and its state dict stays as it is.
"""
import functools
import inspect

from . import package


def channels_last(torch, applied):
    """Convolutions with their channels innermost, as the libraries below prefer them."""

    def change(model):
        if any(isinstance(m, torch.nn.Conv2d) for m in model.modules()):
            model.to(memory_format=torch.channels_last)
            applied("channels_last")

    _once_for_each_model(torch, change)


def fused_norm(torch, applied):
    """flatout.nn.fuse(model): batch norm with the add and the ReLU behind it as one operator, on the CPU."""

    def change(model):
        norms = [m for m in model.modules() if type(m) is torch.nn.BatchNorm2d]
        if not norms or any(m.weight is not None and m.weight.device.type != "cpu" for m in norms):
            return
        if package("nn").fuse(model).fused:
            applied("fused_norm")

    _once_for_each_model(torch, change)


_changes = []


def _once_for_each_model(torch, change):
    """Has change(model) called for each outermost module that trains, before its first step is over."""
    _changes.append(change)
    if len(_changes) > 1:
        return
    known = set()

    def before(module, _):
        if module in known or not module.training or not torch.is_grad_enabled():
            return
        known.update(module.modules())  # those inside are no models of their own
        for one in _changes:
            try:
                one(module)
            except Exception:  # a model of which we know less than we think: it stays as it is
                pass

    handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
    original = torch.Tensor.backward
    left = [_BACKWARDS]

    @functools.wraps(original)
    def backward(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        finally:  # what it computes anew must find the hooks that the forward pass found
            if left[0] > 0:
                left[0] -= 1
                if left[0] == 0:
                    handle.remove()

    torch.Tensor.backward = backward


_BACKWARDS = 4  # until then all models were called, of a GAN too; a hook for all modules costs each of their calls


def fused_optimizer(torch, applied):
    """Optimizers that PyTorch has as one operator over all parameters are made so, unless the job chose otherwise."""
    for cls in vars(torch.optim).values():
        if isinstance(cls, type) and "__init__" in vars(cls):
            signature = inspect.signature(cls.__init__)
            if "fused" in signature.parameters:
                cls.__init__ = _fused(cls.__init__, signature, applied)


_CHOICES = ("fused", "foreach", "capturable", "differentiable")


def _fused(init, signature, applied):
    @functools.wraps(init)
    def __init__(self, params, *args, **kwargs):
        if not hasattr(params, "__len__"):
            params = list(params)  # it may be asked for twice
        try:
            given = signature.bind(self, params, *args, **kwargs).arguments
            chosen = any(given.get(name) for name in _CHOICES) or given.get("fused") is False
        except TypeError:
            chosen = True  # the job's own mistake: PyTorch says it better
        if not chosen:
            try:
                init(self, params, *args, **dict(kwargs, fused=True))
                applied("fused_optimizer")
                return
            except (RuntimeError, TypeError):
                vars(self).clear()  # it has none for these parameters
        init(self, params, *args, **kwargs)

    return __init__


def cudnn_benchmark(torch, applied):
    """cuDNN measures its algorithms for each new shape, and takes the fastest."""
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
        applied("cudnn_benchmark")


def tf32(torch, applied):
    """Products of float32 matrices and convolutions with 10 bits of mantissa, where the GPU has that."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        applied("tf32")


def non_blocking(torch, applied):
    """Copies from pinned memory to a GPU do not wait for their end."""

    def make(original):
        @functools.wraps(original)
        def copy(self, *args, **kwargs):
            if "non_blocking" not in kwargs and self.device.type == "cpu" and self.is_pinned():
                try:
                    moved = original(self, *args, non_blocking=True, **kwargs)
                except TypeError:  # it was given by position
                    return original(self, *args, **kwargs)
                if moved is not self:
                    applied("non_blocking")
                return moved
            return original(self, *args, **kwargs)

        return copy

    torch.Tensor.to = make(torch.Tensor.to)
    torch.Tensor.cuda = make(torch.Tensor.cuda)

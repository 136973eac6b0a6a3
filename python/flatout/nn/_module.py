"""BatchNorm2d with the residual add and the ReLU that follow it."""

from typing import Optional

import torch
from torch import Tensor, fx
from torch.nn import functional

from . import _ops
from ._guard import deep_copy, reduced


_OWN = ("relu", "_flatout_taken")  # attributes that a BatchNorm2d has not


class BatchNormAddReLU2d(torch.nn.BatchNorm2d):
    """y = relu(batch_norm(x) + residual) in one operator: torch.nn.BatchNorm2d, its parameters, buffers and state dict included.

    `residual` may be left out, `relu=False` leaves out the ReLU. x: [N, C, H, W], contiguous or channels_last, as the result is.
    Runs Flatout's kernels for float32, bfloat16, float16 and (CPU only) float64 on the CPU and on CUDA devices that it was built for,
    and PyTorch's for all else: other devices and layouts, a residual of another type or a shape that broadcasts, torch.func, forward-mode AD,
    torch.jit. Statistics are float64; for backward it keeps x and one bit an element. Raises ValueError as BatchNorm2d does. Gradients of
    gradients raise NotImplementedError.
    """

    _flatout_taken = False  # whether `fuse` made it of a BatchNorm2d

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True, relu: bool = True, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if not isinstance(relu, bool):
            raise TypeError(f"BatchNormAddReLU2d: relu must be True or False, it is {relu!r}")
        self.relu = relu

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, relu={self.relu}"

    def forward(self, input: Tensor, residual: Optional[Tensor] = None) -> Tensor:  # `input` as BatchNorm2d calls it
        if type(input) not in _ops.PLAIN and isinstance(input, fx.Proxy):  # to torch.fx it is one layer, as those of torch.nn are
            given = {} if residual is None else {"residual": residual}
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), (input,), given)
        return self.fused(input, residual, self.relu)

    def fused(self, x: Tensor, residual: Optional[Tensor], relu: bool, in_place: bool = False) -> Tensor:
        """forward with this `relu` instead of the module's. in_place: the result has the norm's type and shape, as of `y += residual`."""
        self._check_input_dim(x)
        parameters = weight, bias, running_mean, running_var = self.weight, self.bias, self.running_mean, self.running_var
        if not _is_ours(x, residual, parameters):
            return self._composed(x, residual, relu, in_place)

        if not self.training and running_mean is not None:
            return _ops.infer(x, residual, *parameters, self.eps, relu)
        if x.numel() == x.shape[1]:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")
        kept = self.training and self.track_running_stats and running_mean is not None
        momentum = 0.0 if self.momentum is None else self.momentum
        if kept:
            tracked = self.num_batches_tracked
            if tracked is not None:
                tracked.add_(1)
                if self.momentum is None:
                    momentum = 1.0 / float(tracked)
        return _ops.train(x, residual, weight, bias, running_mean if kept else None, running_var if kept else None, momentum, self.eps, relu)

    def _composed(self, x, residual, relu, in_place):
        """What PyTorch's own operators make of it."""
        if residual is not None:
            _check_residual(x, residual)
        y = super().forward(x)
        if residual is not None:
            y = y.add_(residual) if in_place else y + residual
        return functional.relu(y) if relu else y

    __deepcopy__ = deep_copy

    def __copy__(self):
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __reduce_ex__(self, protocol):
        """For pickle: what `fuse` took is the BatchNorm2d that it was."""
        if self._flatout_taken and not self.relu and type(self) is BatchNormAddReLU2d:
            return reduced(self, torch.nn.BatchNorm2d, *_OWN)
        return super().__reduce_ex__(protocol)

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """What torch.jit.script compiles, with the same parameters and buffers: a BatchNorm2d, unless there is a ReLU."""
        if self.relu:
            return self
        norm = torch.nn.BatchNorm2d.__new__(torch.nn.BatchNorm2d)
        vars(norm).update({name: value for name, value in vars(self).items() if name not in _OWN})
        return norm


def _check_residual(x, residual) -> None:
    if isinstance(residual, (int, float)):
        return
    if not isinstance(residual, Tensor):
        raise TypeError(f"batch norm of x {list(x.shape)}: residual must be a tensor or None, it is {residual!r}"[:200])
    both = zip(reversed(x.shape), reversed(residual.shape))
    if not all(a == b or a == 1 or b == 1 for a, b in both):
        raise ValueError(f"batch norm of x {list(x.shape)}: residual must have its shape, or broadcast with it, it is {list(residual.shape)}")


def _is_ours(x: Tensor, residual: Optional[Tensor], parameters) -> bool:
    if _ops.pytorch_only():
        return False
    device = x.device
    kinds = _ops.kinds(device)
    if x.dtype not in kinds or x.layout is not torch.strided or x.numel() == 0:
        return False
    if residual is not None and not (isinstance(residual, Tensor) and _ops.is_alike(residual, x)):
        return False
    channels = x.shape[1]  # else PyTorch says what is wrong
    return all(p is None or p.dtype in kinds and p.shape[0] == channels and p.device == device for p in parameters)

"""BatchNorm2d with the residual add and the ReLU that follow it."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional

from . import _ops


class BatchNormAddReLU2d(torch.nn.BatchNorm2d):
    """y = relu(batch_norm(x) + residual) in one operator: torch.nn.BatchNorm2d, its parameters, buffers and state dict included.

    `residual` may be left out, `relu=False` leaves out the ReLU. x: [N, C, H, W], contiguous or channels_last, as the result is.
    Runs Flatout's kernels for float32, bfloat16, float16 and (CPU only) float64 on the CPU and on CUDA devices that it was built for,
    and PyTorch's for all else: other devices, a residual of another type or a shape that broadcasts. Statistics are float64; for
    backward it keeps x and one bit an element. Raises ValueError as BatchNorm2d does. Gradients of gradients raise NotImplementedError.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True, relu: bool = True, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.relu = relu

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, relu={self.relu}"

    def forward(self, input: Tensor, residual: Optional[Tensor] = None) -> Tensor:  # `input` as BatchNorm2d calls it
        x = input
        self._check_input_dim(x)
        parameters = weight, bias, running_mean, running_var = self.weight, self.bias, self.running_mean, self.running_var
        if not _is_ours(x, residual, parameters):
            y = super().forward(x)
            if residual is not None:
                y = y + residual
            return functional.relu(y) if self.relu else y

        if not self.training and running_mean is not None:
            return _ops.infer(x, residual, *parameters, self.eps, self.relu)
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
        return _ops.train(x, residual, weight, bias, running_mean if kept else None, running_var if kept else None, momentum, self.eps,
                          self.relu)


def _is_ours(x: Tensor, residual: Optional[Tensor], parameters) -> bool:
    device = x.device
    kinds = _ops.kinds(device)
    if x.dtype not in kinds or x.numel() == 0:
        return False
    if residual is not None and not (isinstance(residual, Tensor) and _ops.is_alike(residual, x)):
        return False
    channels = x.shape[1]  # else PyTorch says what is wrong
    return all(p is None or p.dtype in kinds and p.shape[0] == channels and p.device == device for p in parameters)

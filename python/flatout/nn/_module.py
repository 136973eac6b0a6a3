"""BatchNorm2d with the residual add and the ReLU that follow it."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional

from . import _ops


class BatchNormAddReLU2d(torch.nn.BatchNorm2d):
    """y = relu(batch_norm(x) + residual) in one operator: torch.nn.BatchNorm2d, its parameters, buffers and state dict included.

    `residual` may be left out, `relu=False` leaves out the ReLU. x: [N, C, H, W], contiguous or channels_last, as the result is.
    Runs Flatout's kernels for float32, bfloat16, float16 and float64 on the CPU, and PyTorch's for all else: other devices, a residual
    of another type or a shape that broadcasts, autocast's mixtures. Statistics and sums are float64; for backward it keeps x and one
    bit an element. Raises ValueError as BatchNorm2d does. Gradients of gradients raise NotImplementedError.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True, relu: bool = True, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.relu = relu

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, relu={self.relu}"

    def _is_ours(self, x: Tensor, residual: Optional[Tensor]) -> bool:
        parameters = [p for p in (self.weight, self.bias, self.running_mean, self.running_var) if p is not None]
        return (all(t.device.type == "cpu" for t in (x, *parameters)) and all(_ops.supports(t.dtype) for t in (x, *parameters))
                and all(p.shape[0] == x.shape[1] for p in parameters)  # else PyTorch says what is wrong
                and x.numel() > 0
                and (residual is None or isinstance(residual, Tensor)
                     and (residual.shape, residual.dtype, residual.device) == (x.shape, x.dtype, x.device)))

    def forward(self, input: Tensor, residual: Optional[Tensor] = None) -> Tensor:  # `input` as BatchNorm2d calls it
        x = input
        self._check_input_dim(x)
        if not self._is_ours(x, residual):
            y = super().forward(x)
            if residual is not None:
                y = y + residual
            return functional.relu(y) if self.relu else y

        wanted = [t for t in (x, residual, self.weight, self.bias) if t is not None]
        keep_mask = self.relu and torch.is_grad_enabled() and any(t.requires_grad for t in wanted)
        if not self.training and self.running_mean is not None:
            return torch.ops.flatout.batch_norm_inference(x, residual, self.weight, self.bias, self.running_mean, self.running_var,
                                                          self.eps, self.relu, keep_mask)[0]
        if x.numel() == x.shape[1]:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")
        kept = self.training and self.track_running_stats and self.running_mean is not None
        momentum = 0.0 if self.momentum is None else self.momentum
        if kept and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        y, _, _, mean, var = torch.ops.flatout.batch_norm(
            x, residual, self.weight, self.bias, self.running_mean if kept else None, self.running_var if kept else None, momentum,
            self.eps, self.relu, keep_mask)
        if kept:
            self.running_mean.copy_(mean)
            self.running_var.copy_(var)
        return y

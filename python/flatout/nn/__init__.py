"""Batch norm with the residual add and the ReLU after it as one operator, for PyTorch on the CPU and on CUDA.

    >>> from flatout.nn import fuse
    >>> model, fused, not_fused = fuse(model)      # before training; the state dict stays as it is

or by hand, `BatchNormAddReLU2d` in place of BatchNorm2d. `fold` makes a copy for inference, without batch norms.
"""

from ._fold import fold
from ._fuse import Fusion, fuse
from ._module import BatchNormAddReLU2d

__all__ = ["BatchNormAddReLU2d", "Fusion", "fold", "fuse"]

"""Flatout's input pipeline: pictures from files to batches, without worker processes.

    >>> from flatout.feed import Loader
    >>> loader = Loader("train/", batch_size=64, size=224, seed=1)
    >>> for images, labels in loader:      # float32 [64, 3, 224, 224] and int64 [64]
    ...     step(images, labels)

stands in for torch's DataLoader over an ImageFolder (or tar shards, TFRecord files) with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize. The order
and the pixels are functions of the seed alone, whatever the number of threads. Needs CPython 3.8 or later and nothing else; batches are
torch tensors where the program uses torch, NumPy arrays where it uses NumPy, and speak DLPack to everything else.
"""

from ._loader import Batch, FeedError, Loader, decode
from ._stage import Sample
from ._transforms import options_from_transforms

__all__ = ["Batch", "FeedError", "Loader", "Sample", "decode", "options_from_transforms"]

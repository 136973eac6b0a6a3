"""Flatout's device memory in place of PyTorch's caching allocator.

    >>> import flatout.devmem
    >>> flatout.devmem.install()                     # before the first tensor on a card
    >>> flatout.devmem.install(limits="8GiB")        # or with a limit on what the tensors take
    >>> flatout.devmem.stats()["peak_reserved"]
    >>> flatout.devmem.snapshot("memory.jsonl")      # for `flatout devmem replay memory.jsonl`

or with no change to the program: `flatout run --devmem arena -- python train.py`. docs/devmem.md says what changes and what
does not work with it.
"""

from ._torch import install, installed, logical_device, mem_pool, snapshot, start, stats, trim

__all__ = ["install", "installed", "logical_device", "mem_pool", "snapshot", "stats", "trim"]

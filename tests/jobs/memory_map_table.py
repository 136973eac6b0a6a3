"""Looks up rows of a memory-mapped embedding table, 640 MiB, all over it, in the forward pass.

In a memory limit below the table's size the kernel reclaims what the next steps need and reads it
again. --fixed: the same job without the limit (the harness leaves it away).
"""

import mmap

import numpy as np
import torch
from torch import nn

import kit

WIDTH = 1024  # bytes of a row: a quarter of an OS page


class FrozenTable:
    """A quantized table that several jobs are meant to share through the page cache."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.map.madvise(mmap.MADV_RANDOM)
        self.rows = np.frombuffer(self.map, np.int8).reshape(-1, WIDTH)

    def __call__(self, ids):
        return torch.from_numpy(self.rows[ids].astype(np.float32) / 128)  # CAUSE


class Scorer(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table
        self.score = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        return self.score(self.table(ids))  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    path = kit.blobs("frozen", 1, 640 << 20) / "part_00000.bin"
    kit.forget(path)
    kit.warm(path)
    table = FrozenTable(path)
    scorer = Scorer(table)
    optimizer = torch.optim.SGD(scorer.parameters(), lr=1e-3)
    rng = np.random.default_rng(9)
    meter = kit.Meter(opts)
    while True:
        ids = rng.integers(0, len(table.rows), 512)
        loss = nn.functional.softplus(-scorer(ids)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

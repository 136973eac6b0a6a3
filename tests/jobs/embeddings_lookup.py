"""Training rows of 4 KiB are picked at random from one big cold file: a seek and a read for each.

Read-ahead cannot help, every row waits for the disk. --fixed takes rows that lie one after the other,
in the same file and as cold.
"""

import numpy as np
import torch
from torch import nn

import kit

ROW = 1024  # float32 numbers


class Store:
    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)
        self.total = path.stat().st_size // (4 * ROW)

    def take(self, indices):
        rows = np.empty((len(indices), ROW), np.int32)
        for row, index in zip(rows, indices):
            self.file.seek(4 * ROW * int(index))
            self.file.readinto(row)  # CAUSE
        return torch.from_numpy((rows >> 8).astype(np.float32)) / 2**23


def batches(store, size, in_order):
    rng = np.random.default_rng(5)
    start = 0
    while True:
        if in_order:
            indices = np.arange(start, start + size) % store.total
            start += size
        else:
            indices = rng.integers(0, store.total, size)
        yield store.take(indices)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    path = kit.blobs("table", 1, 2 << 30) / "part_00000.bin"
    kit.forget(path)
    store = Store(path)
    auto = nn.Sequential(nn.Linear(ROW, 64), nn.GELU(), nn.Linear(64, ROW))
    optimizer = torch.optim.AdamW(auto.parameters(), lr=3e-4)
    meter = kit.Meter(opts)
    for rows in batches(store, 256, opts.fixed):
        loss = (auto(rows) - rows).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

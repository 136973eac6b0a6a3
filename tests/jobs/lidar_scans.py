"""Two loader workers unpack laser scans from one archive, whose reader a lock protects.

The lock is held while a scan is unpacked, not only while its bytes are taken from the archive: one
worker waits while the other works. --fixed holds it for the bytes alone.
"""

import multiprocessing
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

POINTS, BATCH = 3000, 16


class Archive:
    """Packed scans, one after the other."""

    def __init__(self, scans=48):
        rng = np.random.default_rng(0)
        self.packed = [zlib.compress(rng.integers(0, 60, (POINTS, 4), dtype=np.int16).tobytes(), 6) for _ in range(scans)]

    def read(self, index):
        return self.packed[index % len(self.packed)]


class Scans(Dataset):
    def __init__(self, fixed):
        self.archive, self.fixed = Archive(), fixed
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 1 << 20

    def unpack(self, packed):
        for _ in range(12):  # the same scan in a dozen layers
            points = np.frombuffer(zlib.decompress(packed), np.int16)
        points = points.reshape(POINTS, 4)
        return torch.from_numpy(points - points.mean(0)).float()

    def __getitem__(self, index):
        if self.fixed:
            with self.lock:
                packed = self.archive.read(index)
            return self.unpack(packed), index % 4
        with self.lock:  # CAUSE
            return self.unpack(self.archive.read(index)), index % 4


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    meter = kit.Meter(opts)
    for points, labels in DataLoader(Scans(opts.fixed), batch_size=BATCH, num_workers=2):
        loss = nn.functional.cross_entropy(model(points).mean(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

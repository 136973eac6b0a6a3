"""Two loader workers augment every picture in NumPy; the network is done long before the next batch.

Flatout says: input.decode_cpu. --fixed uses pictures that were augmented beforehand.
"""

import argparse
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, prepared):
        noise = np.random.default_rng(0).random((64, 128, 128, 3), dtype=np.float32)
        self.pictures = noise
        self.prepared = [self.augment(p) for p in noise] if prepared else None

    def __len__(self):
        return 100_000

    def augment(self, picture):
        for _ in range(12):
            picture = (picture + np.roll(picture, 1, axis=0) + np.roll(picture, 1, axis=1)) / 3
        return np.ascontiguousarray(picture.transpose(2, 0, 1))

    def __getitem__(self, i):
        picture = self.prepared[i % 64] if self.prepared else self.augment(self.pictures[i % 64])
        return torch.from_numpy(picture), i % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(opts.fixed), batch_size=16, num_workers=2)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    model(torch.zeros(1, 3, 128, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + 8
    for pictures, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()

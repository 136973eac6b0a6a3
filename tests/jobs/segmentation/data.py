"""The data set of segment.py: pictures in memory, augmented sample by sample."""

import numpy as np
import torch
from torch.utils.data import Dataset

from . import transforms


class Scenes(Dataset):
    def __init__(self, augment, size=160, count=64):
        rng = np.random.default_rng(3)
        self.images = rng.random((count, size, size, 3), dtype=np.float32)
        self.masks = rng.integers(0, 5, (count, size, size))
        stages = [transforms.RandomGamma(), transforms.Blur()] if augment else []
        self.transform = transforms.Compose(stages + [transforms.Normalize()])

    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        i = index % len(self.images)
        image = self.transform(self.images[i])
        return {
            "image": torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))),
            "mask": torch.from_numpy(self.masks[i]),
        }

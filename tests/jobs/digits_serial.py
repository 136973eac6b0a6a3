"""Reads and decodes in the training process itself (num_workers=0) while the second core has nothing to do.

Decoding and training cost about the same and could overlap. --fixed asks for as many workers as there are cores.
"""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


class Digits(Dataset):
    def __init__(self, folder):
        self.names = sorted(folder.iterdir())

    def __len__(self):
        return 30_000

    def __getitem__(self, i):
        with Image.open(self.names[i % len(self.names)]) as image:
            pixels = np.array(image.convert("L"), dtype=np.float32)  # CAUSE
        return torch.from_numpy(pixels)[None] / 255, i % 10


if __name__ == "__main__":
    opts = kit.options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_set = Digits(kit.photos(64, 128, 128))
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=2 if opts.fixed else 0)  # CAUSE
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1024, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(),
        nn.Linear(640, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    meter = kit.Meter(opts)
    for epoch in range(1000):
        for data, target in train_loader:
            optimizer.zero_grad()
            criterion(model(data), target).backward()
            optimizer.step()
            if meter.step():
                break
        if meter.over:
            break
    meter.write()

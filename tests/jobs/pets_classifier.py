"""Classifies photographs with a small CNN; two loader workers decode large JPEG files at full size.

The workers keep both cores busy with decoding and resizing, the step waits for them.
--fixed reads the same pictures, decoded and resized beforehand.
"""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

SIDE = 96


class Pets(Dataset):
    def __init__(self, root, ready):
        self.files = sorted(root.glob("*.jpg"))
        self.ready = None
        if ready:
            self.ready = [load(f) for f in self.files]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        name = self.files[index % len(self.files)]
        pixels = self.ready[index % len(self.files)] if self.ready else load(name)
        if index % 2:
            pixels = pixels[:, ::-1]
        chw = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return chw.float().div_(255), index % 37


def load(name):
    picture = Image.open(name).convert("RGB")  # CAUSE
    return np.asarray(picture.resize((SIDE, SIDE), Image.BILINEAR))  # CAUSE


def main():
    opts = kit.options()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    data = Pets(kit.photos(64, 512, 384), opts.fixed)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 37),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    meter = kit.Meter(opts)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(net(images), labels)
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

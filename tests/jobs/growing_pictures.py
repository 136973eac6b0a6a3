"""The first hundred steps read small pictures; then the second shard, whose files are many times as large.

--fixed: both shards have small ones.
"""

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
import numpy as np

import kit

BATCH = 8


class Shards(IterableDataset):
    def __init__(self, first, second):
        self.first, self.second = first, second

    def pictures(self):
        for i in range(100 * BATCH):
            yield self.first[i % len(self.first)]
        i = 0
        while True:
            yield self.second[i % len(self.second)]
            i += 1

    def __iter__(self):
        for path in self.pictures():
            image = Image.open(path).convert("RGB")  # CAUSE
            image = image.resize((64, 64), Image.BILINEAR)  # CAUSE
            yield torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    small = sorted(kit.photos(32, 160, 160).glob("*.jpg"))
    large = sorted(kit.photos(32, 960, 720).glob("*.jpg"))
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 3, 1))
    adam = torch.optim.Adam(net.parameters())
    meter = kit.Meter(opts)
    for x in DataLoader(Shards(small, small if opts.fixed else large), batch_size=BATCH, num_workers=1):
        loss = (net(x) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

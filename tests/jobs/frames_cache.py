"""A data set that remembers each window it ever cut, in the worker; windows never repeat.

--fixed remembers nothing.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import kit


class Video(IterableDataset):
    def __init__(self, remember):
        self.frames = np.random.default_rng(0).integers(0, 255, (200, 192, 192), np.uint8)
        self.remember = remember
        self.seen = {}

    def window(self, key):
        start, top, left = key
        cut = self.frames[start : start + 16, top : top + 128, left : left + 128]
        cut = cut.astype(np.float32) / 255
        if self.remember:
            self.seen[key + (len(self.seen),)] = cut  # CAUSE
        return cut

    def __iter__(self):
        rng = np.random.default_rng(1)
        while True:
            key = (int(rng.integers(180)), int(rng.integers(60)), int(rng.integers(60)))
            yield torch.from_numpy(self.window(key)[:, ::4, ::4])


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(16, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(48, 16, 1))
    adam = torch.optim.Adam(net.parameters())
    meter = kit.Meter(opts)
    for clip in DataLoader(Video(not opts.fixed), batch_size=6, num_workers=1):
        loss = nn.functional.mse_loss(net(clip), clip)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

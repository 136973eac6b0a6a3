"""Satellite tiles of 512 KiB are read once each from a cold disk, by one worker; a simple model learns them.

Run in a control group that caps reads, the reads wait for the cap while the disk has nothing to do.
--fixed reads the tiles into the page cache first (the harness then leaves the cap away, too).
"""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import kit


class Tiles(IterableDataset):
    def __init__(self, root: Path, bands: int = 4):
        self.root, self.bands = root, bands

    def __iter__(self):
        for path in sorted(self.root.glob("*.bin")):
            content = path.read_bytes()  # CAUSE
            tile = np.frombuffer(content, np.uint8).reshape(self.bands, 256, 512)
            yield torch.from_numpy(tile[:, ::8, ::8] / np.float32(255))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.SiLU(),
            torch.nn.Conv2d(8, 4, 3, padding=1))

    def forward(self, x):
        return self.body(x)


def run():
    opts = kit.options()
    torch.set_num_threads(1)
    root = kit.blobs("tiles", 1600, 4 * 256 * 512)
    if opts.fixed:
        kit.warm(root)
    else:
        kit.forget(root)
    model = Model()
    optim = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    for tiles in DataLoader(Tiles(root), batch_size=4, num_workers=1):
        optim.zero_grad()
        torch.nn.functional.mse_loss(model(tiles), tiles).backward()
        optim.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    run()

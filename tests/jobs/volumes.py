"""Medical volumes of 16 MiB, one file each, are read once and in order from a cold disk.

Nothing can be reused: the whole run is less than one pass over the data. --fixed reads the files
into the page cache before the training begins.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

SHAPE = (64, 256, 256)


class Volumes(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, k):
        raw = np.fromfile(self.paths[k], dtype=np.float32)  # CAUSE
        return torch.from_numpy(raw.view(np.int32).reshape(SHAPE)[::4, ::4, ::4].astype(np.float32))


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    folder = kit.blobs("volumes", 160, 4 * SHAPE[0] * SHAPE[1] * SHAPE[2])
    kit.warm(folder) if opts.fixed else kit.forget(folder)
    loader = DataLoader(Volumes(sorted(folder.iterdir())), batch_size=1)
    net = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1))
    adam = torch.optim.AdamW(net.parameters())
    meter = kit.Meter(opts)
    for volume in loader:
        volume = volume / 2**31
        error = nn.functional.l1_loss(net(volume), volume)
        adam.zero_grad()
        error.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Workers hand over batches of 24 MiB through shared memory, two ahead each.

With a small /dev/shm a worker fails (of a bus error, in older releases of PyTorch). --fixed makes the batches small.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


class Stereo(Dataset):
    def __init__(self, side):
        self.side = side

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        return torch.full((6, self.side, self.side), (i % 7) / 7)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    data = Stereo(64 if opts.fixed else 512)
    loader = DataLoader(data, batch_size=4, num_workers=2, prefetch_factor=2)
    net = nn.Sequential(nn.Conv2d(6, 8, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    meter = kit.Meter(opts)
    for pair in loader:
        loss = net(pair).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

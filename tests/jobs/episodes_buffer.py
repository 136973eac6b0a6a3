"""Collects episodes in the training process, or with --workers in a loader worker, until memory runs out.

In a memory limit the kernel kills whoever grew. --fixed keeps the last fifty only.
"""

import collections

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import kit


class Buffer:
    def __init__(self, limit):
        self.items = collections.deque(maxlen=limit)

    def push(self, item):
        self.items.append(item)  # CAUSE


class Episodes(IterableDataset):
    def __init__(self, keep, limit):
        self.buffer = Buffer(limit) if keep else None

    def __iter__(self):
        while True:
            episode = torch.randn(64, 2048)
            if self.buffer:
                self.buffer.push(episode.repeat(4, 1))  # CAUSE
            yield episode


def main():
    opts = kit.options(lambda p: p.add_argument("--workers", type=int, default=0))
    torch.set_num_threads(1)
    limit = 50 if opts.fixed else None
    loader = DataLoader(Episodes(opts.workers > 0, limit), batch_size=2, num_workers=opts.workers)
    model = nn.Sequential(nn.Linear(2048, 256), nn.Tanh(), nn.Linear(256, 2048))
    adam = torch.optim.Adam(model.parameters())
    replay = Buffer(limit)
    meter = kit.Meter(opts)
    for episode in loader:
        if not opts.workers:
            replay.push(episode.repeat(4, 1, 1))  # CAUSE
        loss = (model(episode) - episode).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

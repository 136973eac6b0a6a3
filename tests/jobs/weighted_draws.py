"""Learns rare classes more often: a sampler of its own draws the samples by weight, for one loader worker.

The sampler works in the training thread, and sums up all weights for each sample that it draws.
--fixed draws the samples of an epoch at once.
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import kit

SAMPLES = 40_000
DRAWS = 20_000


class ByWeight(Sampler):
    def __init__(self, weights, at_once):
        self.weights = weights
        self.at_once = at_once

    def __len__(self):
        return DRAWS

    def __iter__(self):
        if self.at_once:
            yield from random.choices(range(SAMPLES), weights=self.weights, k=DRAWS)
            return
        for _ in range(DRAWS):
            yield random.choices(range(SAMPLES), weights=self.weights)[0]  # CAUSE


def main():
    opts = kit.options()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(SAMPLES, 128), torch.randint(0, 10, (SAMPLES,)))
    weights = [random.random() for _ in range(SAMPLES)]
    loader = DataLoader(data, batch_size=32, sampler=ByWeight(weights, opts.fixed), num_workers=1,
                        persistent_workers=True)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = kit.Meter(opts)
    while not meter.over:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

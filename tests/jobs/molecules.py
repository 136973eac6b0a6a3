"""Graphs of molecules; one sample in a hundred is a protein that takes a worker far longer.

Batches come in order, so both the other worker and the training wait for the one that has it.
--fixed makes the large ones as small as the rest.
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import kit


class Molecules(Dataset):
    def __init__(self, level):
        self.level = level

    def __len__(self):
        return 20_000

    def atoms(self, i):
        if self.level or i % 160 != 37:
            return 60
        return 4000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        places = rng.random((self.atoms(i), 3), dtype=np.float32)
        nearest = np.empty(len(places), np.float32)
        for k, place in enumerate(places):
            distance = np.square(places - place).sum(axis=1)  # CAUSE
            distance[k] = np.inf  # CAUSE
            nearest[k] = distance.min()  # CAUSE
        return torch.from_numpy(np.histogram(nearest, 64, (0, 0.1))[0].astype(np.float32))


class Fit:
    def __init__(self, opts):
        self.meter = kit.Meter(opts)
        self.net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.loader = DataLoader(Molecules(opts.fixed), batch_size=16, num_workers=2, prefetch_factor=2)

    def run(self):
        for batch in self.loader:
            loss = (self.net(batch) - batch).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.meter.step():
                return


if __name__ == "__main__":
    options = kit.options()
    torch.set_num_threads(1)
    fit = Fit(options)
    fit.run()
    fit.meter.write()

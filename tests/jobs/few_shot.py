"""Few-shot episodes: an epoch is a dozen steps, and the workers start anew for each.

Each worker also loads a table when it starts. --fixed keeps the workers between the epochs.
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import kit


class Episodes(Dataset):
    """The table is loaded by whoever first needs it: each worker for itself."""

    def __init__(self, table):
        self.table_path = table
        self.table = None

    def __len__(self):
        return 96

    def __getitem__(self, i):
        if self.table is None:
            self.table = np.load(self.table_path).astype(np.float32)
        return torch.from_numpy(self.table[i : i + 64, :256])


def build(folder):
    np.save(folder / "table.npy", np.random.default_rng(0).integers(0, 9, (4000, 2000), np.int32))


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    table = kit.data_dir("episodes", build) / "table.npy"
    loader = DataLoader(  # CAUSE
        Episodes(table), batch_size=8, num_workers=2, persistent_workers=opts.fixed)  # CAUSE
    proto = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    sgd = torch.optim.SGD(proto.parameters(), lr=0.1)
    meter = kit.Meter(opts)
    while not meter.over:
        for episode in loader:  # CAUSE
            points = proto(episode)
            loss = (points - points.mean(1, keepdim=True)).square().sum(-1).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

"""The transform asks an external program about every few samples: a process for each question.

--fixed asks in the process itself.
"""

import os
import subprocess

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


class Recordings(Dataset):
    def __init__(self, folder, inside):
        self.files = sorted(folder.iterdir())
        self.inside = inside

    def __len__(self):
        return 100_000

    def duration(self, path):
        if self.inside:
            return os.stat(path).st_size
        done = subprocess.run(["stat", "-c", "%s", str(path)], capture_output=True, text=True, check=True)  # CAUSE
        return int(done.stdout)

    def __getitem__(self, i):
        path = self.files[i % len(self.files)]
        length = self.duration(path) // 4  # CAUSE
        wave = torch.linspace(0, 30, 2048).sin()
        return wave * (length / 2048)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    loader = DataLoader(Recordings(kit.blobs("recordings", 50, 8192), opts.fixed), batch_size=8, num_workers=1)
    model = nn.Sequential(nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 2048))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    for wave in loader:
        loss = (model(wave) - wave).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

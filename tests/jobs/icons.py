"""24,000 icons, a file of 2 KiB each, are read once each from a cold disk: one small read per open.

--fixed reads the same icons, as cold, from one file with all of them in a row.
"""

import glob
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import kit

COUNT, SIZE = 24_000, 2048


def build(folder):
    with open(folder / "all.bin", "wb") as packed:
        for i in range(COUNT):
            sub = folder / f"{i % 64:02d}"
            sub.mkdir(exist_ok=True)
            icon = os.urandom(SIZE)
            (sub / f"{i:06d}.ico").write_bytes(icon)
            packed.write(icon)
    os.sync()


class Icons(Dataset):
    def __init__(self, root, packed):
        self.paths = sorted(glob.glob(f"{root}/*/*.ico"))
        self.packed = open(root / "all.bin", "rb") if packed else None

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        if self.packed:
            self.packed.seek(i * SIZE)
            raw = self.packed.read(SIZE)
        else:
            with open(self.paths[i], "rb") as f:  # CAUSE
                raw = f.read()  # CAUSE
        return torch.from_numpy(np.frombuffer(raw, np.uint8).astype(np.float32) / 255), i % 9


opts = kit.options()
torch.set_num_threads(1)
root = kit.data_dir("icons", build)
kit.forget(root)
loader = DataLoader(Icons(root, opts.fixed), batch_size=64, num_workers=0)
model = torch.nn.Sequential(torch.nn.Linear(SIZE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
meter = kit.Meter(opts)
for inputs, targets in loader:
    loss = criterion(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if meter.step():
        break
meter.write()

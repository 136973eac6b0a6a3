"""Two causes at once: NumPy filters in the loader bound the step, and every three steps a save blocks it.

--fixed has neither; --only save and --only load have one of them.
"""

import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit


def sharpen(image):
    for _ in range(14):
        mean = sum(np.roll(image, s, a) for s in (-1, 1) for a in (0, 1)) / 4  # CAUSE
        image = np.clip(image + 0.3 * (image - mean), 0, 1)  # CAUSE
    return image


class Pictures(Dataset):
    def __init__(self, filtered):
        self.raw = np.random.default_rng(0).random((64, 128, 128), dtype=np.float32)
        self.filtered = filtered

    def __len__(self):
        return 40_000

    def __getitem__(self, i):
        image = self.raw[i % 64]
        if self.filtered:
            image = sharpen(image)  # CAUSE
        return torch.from_numpy(image[::4, ::4].reshape(-1).copy())


def snapshot(folder, step, model, optimizer):
    path = os.path.join(folder, f"{step % 2}.pt")
    with open(path, "wb") as out:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)  # CAUSE
        os.fsync(out.fileno())  # CAUSE


def main():
    opts = kit.options(lambda p: p.add_argument("--only", default=""))
    torch.set_num_threads(1)
    loads = not opts.fixed and opts.only in ("", "load")
    saves = not opts.fixed and opts.only in ("", "save")
    loader = DataLoader(Pictures(loads), batch_size=16, num_workers=2)
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1024))
    optimizer = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    with tempfile.TemporaryDirectory() as folder:
        for step, x in enumerate(loader, start=1):
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            if saves and step % 3 == 0:
                snapshot(folder, step, model, optimizer)  # CAUSE
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

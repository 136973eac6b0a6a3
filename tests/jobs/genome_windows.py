"""Every epoch streams the whole data set, 24 files of 32 MiB, through one worker.

In a memory limit smaller than the data set the page cache has lost each file when its turn comes
again. --fixed: the same job without the limit (the harness leaves it away).
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import kit

WINDOW = 1 << 20


class Windows(IterableDataset):
    def __init__(self, folder):
        self.files = [folder / n for n in sorted(os.listdir(folder))]

    def __iter__(self):
        for path in self.files:
            with open(path, "rb", buffering=0) as handle:
                while True:
                    block = handle.read(4 * WINDOW)  # CAUSE
                    if len(block) < 4 * WINDOW:
                        break
                    codes = torch.frombuffer(bytearray(block[: WINDOW // 16]), dtype=torch.uint8)
                    yield codes.view(16, -1)[:, :256].float() / 255


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    folder = kit.blobs("genome", 24, 32 << 20)
    kit.forget(folder)  # whoever reads it first is charged for it
    if opts.fixed:
        kit.warm(folder)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Windows(folder), batch_size=4, num_workers=0)
    meter = kit.Meter(opts)
    while not meter.over:
        for window in loader:
            loss = (model(window) - window).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

"""A small CNN on pictures that lie in memory; nothing is wrong with it.

--workers 0 or 2: the loader only indexes a tensor. Taking a batch from a worker costs the step a few
milliseconds, whatever it holds: of a short step that is a cause of its own (input.collate).
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


def net():
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 64, 10))


def main():
    opts = kit.options(lambda p: (p.add_argument("--workers", type=int, default=0),
                                  p.add_argument("--batch", type=int, default=8)))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.rand(2000, 3, 32, 32), torch.randint(0, 10, (2000,)))
    loader = DataLoader(data, batch_size=opts.batch, shuffle=True, num_workers=opts.workers,
                        persistent_workers=opts.workers > 0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    meter = kit.Meter(opts)
    while not meter.over:
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

"""Raises: in the training loop after 40 steps, or with --workers in a worker, on a sample with a bad label.

--fixed has no such sample.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

CLASSES = {f"class{i}": i for i in range(10)}


class Labelled(Dataset):
    def __init__(self, bad_at):
        self.bad_at = bad_at

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        label = "klass3" if i == self.bad_at else f"class{i % 10}"
        return torch.full((256,), i / 1e5), CLASSES[label]  # CAUSE


def check(loss, step, limit):
    if step == limit:
        raise ValueError(f"loss is {loss:.3f} after {step} steps")  # CAUSE


def main():
    opts = kit.options(lambda p: p.add_argument("--workers", type=int, default=0))
    torch.set_num_threads(1)
    bad_at = 1500 if opts.workers and not opts.fixed else None
    limit = 40 if not opts.workers and not opts.fixed else None
    model = nn.Sequential(nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = kit.Meter(opts)
    for step, (x, y) in enumerate(DataLoader(Labelled(bad_at), batch_size=32, num_workers=opts.workers)):  # CAUSE
        loss = nn.functional.cross_entropy(model(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        check(loss.item(), step, limit)  # CAUSE
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Two causes at once: a Python loop of tiny operations, and a synced log line after every step.

--fixed has neither.
"""

import os
import tempfile

import torch
from torch import nn

import kit


def pairwise(points):
    """The energy of all pairs, pair by pair."""
    energy = points.new_zeros(())
    for a in range(len(points)):
        for b in range(a):
            gap = points[a] - points[b]  # CAUSE
            energy = energy + 1 / (1 + gap.dot(gap))  # CAUSE
    return energy


def pairwise_at_once(points):
    gaps = points[:, None] - points[None]
    return (1 / (1 + gaps.square().sum(-1))).tril(-1).sum()


class Log:
    def __init__(self, path, durable):
        self.file = open(path, "w")
        self.durable = durable

    def write(self, step, **values):
        for name, value in values.items():
            self.file.write(f"{step} {name} {value:.6f}\n")
            if self.durable:
                self.file.flush()
                os.fsync(self.file.fileno())  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    place = nn.Linear(64, 3)
    optimizer = torch.optim.Adam(place.parameters())
    x = torch.randn(20, 64)
    energy_of = pairwise_at_once if opts.fixed else pairwise
    meter = kit.Meter(opts)
    with tempfile.TemporaryDirectory() as folder:
        log = Log(os.path.join(folder, "log.txt"), not opts.fixed)
        step = 0
        while True:
            loss = energy_of(place(x))  # CAUSE
            optimizer.zero_grad()
            loss.backward()  # CAUSE
            optimizer.step()
            step += 1
            number = loss.item()
            log.write(step, **{f"metric{i}": number / (i + 1) for i in range(40)})  # CAUSE
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

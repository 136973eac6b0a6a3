"""Looks for cached results under names that hardly ever exist, thousands of them each step.

Every miss leaves a name in the kernel's directory cache; in a memory limit that cache has to be
reclaimed whenever the step needs memory. --fixed asks a set in memory.
"""

import os
import random

import torch
from torch import nn

import kit

TRIES = 4000


def lookup(folder, names, known):
    if known is not None:
        return [n for n in names if n in known]
    return [n for n in names if os.path.exists(os.path.join(folder, n))]  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    folder = str(kit.blobs("results", 16, 4096))
    known = set(os.listdir(folder)) if opts.fixed else None
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    rng = random.Random(1)
    meter = kit.Meter(opts)
    while True:
        names = [f"{rng.getrandbits(64):016x}-result-of-an-expensive-preparation" for _ in range(TRIES)]
        hits = lookup(folder, names, known)  # CAUSE
        x = torch.randn(2048, 256, 8).sum(-1) + len(hits)
        loss = model(x).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

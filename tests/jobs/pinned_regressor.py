"""A regression with two intra-op threads; a line copied from a cluster script pins the process to core 0.

The second core stays free. --fixed does not pin.
"""

import os

import torch
from torch import nn

import kit


def setup_affinity(rank=0, per_rank=1):
    first = rank * per_rank
    os.sched_setaffinity(0, range(first, first + per_rank))  # CAUSE


def main():
    opts = kit.options()
    if not opts.fixed:
        setup_affinity()  # CAUSE
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    x, y = torch.randn(256, 512), torch.randn(256, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    while True:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Hands what earlier runs left to short-lived children before it trains, and never waits for them.

In a group that allows few processes their entries run out. --fixed waits for each child; --children
says how many there are.
"""

import os

import torch
from torch import nn

import kit


def hand_over(wait):
    pid = os.fork()  # CAUSE
    if pid == 0:
        os._exit(0)
    if wait:
        os.waitpid(pid, 0)


def main():
    opts = kit.options(lambda p: p.add_argument("--children", type=int, default=400))
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    adam = torch.optim.Adam(model.parameters())
    x = torch.randn(128, 512)
    for _ in range(opts.children):
        hand_over(opts.fixed)  # CAUSE
    meter = kit.Meter(opts)
    while True:
        loss = (model(x) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Keeps what the model put out in every step, to look at it later.

Flatout says: mem.leak. --fixed keeps one number of each.
"""

import argparse
import time

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    end = time.monotonic() + 12
    while time.monotonic() < end:
        x = torch.randn(1024, 256)
        output = model(x)
        optimizer.zero_grad()
        (output - x).square().mean().backward()
        optimizer.step()
        history.append(output.mean().item() if opts.fixed else output)


if __name__ == "__main__":
    main()

"""Keeps every loss for a plot at the end, with the graph and the activations that hang on it.

--fixed keeps the number.
"""

import torch
from torch import nn

import kit


class History:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1))
    sgd = torch.optim.SGD(layers.parameters(), lr=1e-4)
    history = History()
    meter = kit.Meter(opts)
    while True:
        x = torch.randn(256, 256)
        hidden = layers[:4](x)
        loss = layers[4](hidden).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        kept = loss.item() if opts.fixed else (loss, hidden)
        history.add(kept)  # CAUSE
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

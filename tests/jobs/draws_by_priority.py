"""A policy that learns from a buffer of transitions, drawn by their priority.

--fixed draws from the last ones that it saw, by a sum that it keeps.
"""

import random

import torch
from torch import nn

import kit

EACH_STEP, DRAWN = 60, 256


class Buffer:
    def __init__(self, kept):
        self.kept, self.priorities, self.states = kept, [], []

    def add(self, count):
        self.priorities += [random.random() for _ in range(count)]
        self.states += list(torch.randn(count, 128).unbind())
        if self.kept:
            del self.priorities[:-self.kept], self.states[:-self.kept]

    def draw(self):
        total = sum(self.priorities)
        weights = [p / total for p in self.priorities]  # CAUSE
        drawn = random.choices(range(len(weights)), weights, k=DRAWN)  # CAUSE
        return torch.stack([self.states[i] for i in drawn])


if __name__ == "__main__":
    opts = kit.options()
    random.seed(7)
    torch.manual_seed(7)
    buffer = Buffer(400 if opts.fixed else 0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-2)
    meter = kit.Meter(opts)
    while True:
        buffer.add(EACH_STEP)
        states = buffer.draw()
        loss = nn.functional.cross_entropy(net(states), torch.randint(0, 4, (DRAWN,)))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    meter.write()

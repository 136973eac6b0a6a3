"""Builds syntax trees of dictionaries and lists for each batch and keeps the last few thousand of them.

The collector, set to run often "to keep memory low", walks them again and again.
--fixed turns it off: trees have no cycles, and are freed without it.
"""

import collections
import gc
import random

import torch
from torch import nn

import kit


def parse(rng, depth=4):
    if depth == 0:
        return {"token": rng.getrandbits(6), "children": []}
    return {"token": rng.getrandbits(6), "children": [parse(rng, depth - 1) for _ in range(2)]}


def bag(tree, counts):
    counts[tree["token"]] += 1.0
    for child in tree["children"]:
        bag(child, counts)
    return counts


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    rng = random.Random(4)
    recent = collections.deque((parse(rng) for _ in range(4000)), maxlen=4000)
    if opts.fixed:
        gc.disable()
    else:
        gc.set_threshold(100, 2, 1)  # CAUSE
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    adam = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    while True:
        trees = [parse(rng) for _ in range(16)]  # CAUSE
        recent.extend(trees)
        x = torch.tensor([bag(tree, [0.0] * 64) for tree in trees])
        y = torch.tensor([tree["token"] % 2 for tree in trees])
        loss = nn.functional.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

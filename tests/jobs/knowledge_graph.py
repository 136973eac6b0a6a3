"""Keeps a big graph of Python objects and "frees memory" after every step.

--fixed does not.
"""

import gc

import torch
from torch import nn

import kit


class Entity:
    def __init__(self, number):
        self.number = number
        self.links = []
        self.names = {"id": number}


def build(count):
    entities = [Entity(i) for i in range(count)]
    for i, entity in enumerate(entities):
        entity.links = [entities[(i * 7 + k) % count] for k in range(3)]
    return entities


def cleanup():
    gc.collect()  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    graph = build(30_000)
    table = nn.Embedding(len(graph), 64, sparse=True)
    mixer = nn.Sequential(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD([*table.parameters(), *mixer.parameters()], lr=0.01)
    generator = torch.Generator().manual_seed(0)
    meter = kit.Meter(opts)
    while True:
        heads = torch.randint(0, len(graph), (256,), generator=generator)
        tails = torch.tensor([[n.number for n in graph[h].links] for h in heads.tolist()])
        loss = (mixer(table(tails).flatten(1)) - table(heads)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not opts.fixed:
            cleanup()  # CAUSE
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Protein contact maps; an executor of the job's own makes the examples, and each epoch makes a new one.

Every new process works out a rotation before it can serve. --fixed keeps one executor.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

# Two processes start at a time: as many threads of each would spin for each other's cores, at a few
# seconds a start where it takes a fifth of one.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import nn

import kit

PER_EPOCH = 24
_rotation = None


def set_up():
    global _rotation
    rng = np.random.default_rng(0)
    _rotation = np.linalg.qr(rng.standard_normal((700, 700)))[0].astype(np.float32)  # CAUSE


def example(seed):
    rng = np.random.default_rng(seed)
    walk = rng.standard_normal((8, 64, 3)).astype(np.float32).cumsum(1)
    distance = np.linalg.norm(walk[:, :, None] - walk[:, None], axis=-1)
    return distance @ _rotation[:64, :64], (distance < 4).astype(np.float32)


def executor():
    return ProcessPoolExecutor(2, mp_context=get_context("fork"), initializer=set_up)  # CAUSE


class Epochs:
    def __init__(self, keep):
        self.kept = executor() if keep else None

    def __call__(self, epoch):
        seeds = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
        if self.kept:
            yield from self.kept.map(example, seeds)
            return
        with executor() as pool:  # CAUSE
            yield from pool.map(example, seeds)  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    epochs = Epochs(opts.fixed)
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ELU(), nn.Conv2d(12, 1, 5, padding=2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    meter, epoch = kit.Meter(opts), 0
    while not meter.over:
        for x, y in epochs(epoch):
            x, y = torch.from_numpy(x)[:, None], torch.from_numpy(y)[:, None]
            loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if meter.step():
                break
        epoch += 1
    meter.write()


if __name__ == "__main__":
    main()

"""Wave heights are simulated by a process of a multiprocessing pool, two batches ahead, and come back as arrays.

--fixed has the process write them into memory that both share, and only the slot's number comes back.
"""

import multiprocessing as mp

import numpy as np
import torch
from torch import nn

import kit

BATCH, SIDE, AHEAD, SLOTS = 48, 160, 2, 4
_shared = None


def adopt(shared):
    global _shared
    _shared = shared


def slot(number):
    size = BATCH * SIDE * SIDE
    return np.frombuffer(_shared, np.float64, size, 8 * size * number).reshape(BATCH, SIDE, SIDE)


def simulate(number, in_place):
    rng = np.random.default_rng(number)
    swell = np.sin(np.arange(SIDE) * rng.uniform(0.05, 0.2))
    heights = slot(number % SLOTS) if in_place else np.empty((BATCH, SIDE, SIDE))
    np.multiply.outer(rng.uniform(0.5, 2, BATCH), np.add.outer(swell, swell), out=heights)
    return number % SLOTS if in_place else heights  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    adopt(context.RawArray("d", BATCH * SIDE * SIDE * SLOTS if opts.fixed else 1))
    pool = context.Pool(1)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, stride=4), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    meter = kit.Meter(opts)
    pending = [pool.apply_async(simulate, (n, opts.fixed)) for n in range(AHEAD)]
    step = AHEAD
    while not meter.over:
        heights = pending.pop(0).get()  # CAUSE
        pending.append(pool.apply_async(simulate, (step, opts.fixed)))
        x = torch.from_numpy(slot(heights) if opts.fixed else heights).float()[:, None]
        loss = (model(x)[:, 0] - x.abs().amax((1, 2, 3))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        meter.step()
    meter.write()
    pool.terminate()
    pool.join()


if __name__ == "__main__":
    main()

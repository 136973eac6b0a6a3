"""Every batch is simulated by a new multiprocessing pool, made and torn down within the step.

--fixed makes the pool once.
"""

import multiprocessing as mp

import numpy as np
import torch
from torch import nn

import kit


def simulate(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(256).cumsum().astype(np.float32)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    lasting = context.Pool(2) if opts.fixed else None
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    step = 0
    while not meter.over:
        seeds = range(step * 32, step * 32 + 32)
        if lasting:
            paths = lasting.map(simulate, seeds, 16)
        else:
            pool = context.Pool(2)  # CAUSE
            paths = pool.map(simulate, seeds, 16)  # CAUSE
            pool.close()
            pool.join()  # CAUSE
        x = torch.from_numpy(np.stack(paths)) / 16
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        meter.step()
    meter.write()
    if lasting:
        lasting.terminate()


if __name__ == "__main__":
    main()

"""Every thirty steps the sampler's difficulty index is computed anew, which takes longer than ten steps.

--fixed computes it once.
"""

import numpy as np
import torch
from torch import nn

import kit


class Curriculum:
    def __init__(self, count):
        self.scores = np.random.default_rng(0).random(count)
        self.order = np.arange(count)

    def refresh(self, seed):
        noise = np.random.default_rng(seed).random(len(self.scores))  # CAUSE
        self.order = np.argsort(self.scores + 0.1 * noise, kind="stable")  # CAUSE

    def pick(self, step, size):
        return self.order[(step * size) % 100_000 :][:size] % 4096


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    curriculum = Curriculum(1_000_000)
    features = torch.randn(4096, 256)
    model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256))
    adam = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    step = 0
    while True:
        if step % 30 == 0 and (step == 0 or not opts.fixed):
            curriculum.refresh(step)  # CAUSE
        x = features[torch.from_numpy(curriculum.pick(step, 128))]
        loss = (model(x) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Flood levels from gauges along a river: a plain loop takes windows out of an array, and shifts each in time.

The windows are made in the loop itself, from memory: no loader, no generator, no file. What is logged after the step is
no part of it. --fixed takes the windows as they are.
"""

import numpy as np
import torch
from torch import nn

import kit

GAUGES, HOURS, BATCH = 24, 192, 32


class River:
    def __init__(self):
        self.rng = np.random.default_rng(5)
        self.levels = self.rng.standard_normal((GAUGES, 60_000)).cumsum(1).astype(np.float32)

    def shifted(self, window):
        """Each gauge's own clock, by which it lies a little before or behind."""
        at = np.arange(HOURS, dtype=np.float64)
        late = self.rng.normal(0, 1.5, (GAUGES, 4))
        return np.stack([np.interp(at + np.interp(at, at[::48], own), at, row)  # CAUSE
                         for own, row in zip(late, window)])  # CAUSE

    def windows(self, shift):
        begins = self.rng.integers(0, self.levels.shape[1] - HOURS, BATCH)
        x = np.stack([self.levels[:, b:b + HOURS] for b in begins])
        if shift:
            x = np.stack([self.shifted(window) for window in x])  # CAUSE
        x = x - x.mean(2, keepdims=True)
        return torch.from_numpy(x.astype(np.float32))


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    river = River()
    model = nn.Sequential(nn.Conv1d(GAUGES, 24, 7, padding=3), nn.ReLU(), nn.Conv1d(24, GAUGES, 7, padding=3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    meter = kit.Meter(opts)
    while not meter.over:
        x = river.windows(not opts.fixed)
        loss = (model(x[:, :, :-1]) - x[:, :, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
    meter.write()


if __name__ == "__main__":
    main()

"""Two causes at once: gc after every step over many objects, and a pause "to let the disks rest".

--fixed has neither.
"""

import gc
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


class Janitor:
    def __init__(self, rest_s):
        self.rest_s = rest_s

    def after_step(self):
        gc.collect()  # CAUSE
        time.sleep(self.rest_s)  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    columns = [{"name": f"c{i}", "values": [i, [i]]} for i in range(60_000)]
    data = TensorDataset(torch.randn(6000, 64), torch.randn(6000, 1))
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    rms = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    janitor = None if opts.fixed else Janitor(0.03)
    meter = kit.Meter(opts)
    while not meter.over:
        for x, y in DataLoader(data, batch_size=60, shuffle=True):
            loss = nn.functional.mse_loss(model(x), y)
            rms.zero_grad()
            loss.backward()
            rms.step()
            if janitor:
                janitor.after_step()  # CAUSE
            if meter.step():
                break
    assert len(columns) == 60_000
    meter.write()


if __name__ == "__main__":
    main()

"""Logs every sample of each batch through a handler that syncs its file, so that no line is ever lost.

--fixed uses the plain file handler.
"""

import logging
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit

log = logging.getLogger("audit")


class DurableHandler(logging.FileHandler):
    def emit(self, record):
        super().emit(record)
        os.fsync(self.stream.fileno())  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(20_000, 128), torch.randint(0, 10, (20_000,)))
    meter = kit.Meter(opts)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "audit.log")
        log.addHandler(logging.FileHandler(path) if opts.fixed else DurableHandler(path))
        log.setLevel(logging.INFO)
        while not meter.over:
            for x, y in DataLoader(data, batch_size=64, shuffle=True):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                for row in range(0, len(y), 4):
                    log.info("sample label=%d", y[row])  # CAUSE
                if meter.step():
                    break
    meter.write()


if __name__ == "__main__":
    main()

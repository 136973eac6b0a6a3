"""Calls a native function that is wrong about a pointer, after 50 steps or --in-worker on a sample.

--how abort: it calls abort() instead; --how killed: another program's kill hits the process.
--fixed calls none.
"""

import ctypes
import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

libc = ctypes.CDLL(None)


def native_norm(how):
    if how == "segv":
        ctypes.memset(8, 0, 64)  # CAUSE
    elif how == "abort":
        libc.abort()  # CAUSE
    else:
        os.kill(os.getpid(), signal.SIGKILL)  # CAUSE


class Rows(Dataset):
    def __init__(self, bad_at, how):
        self.bad_at, self.how = bad_at, how

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        if i == self.bad_at:
            native_norm(self.how)  # CAUSE
        return torch.full((512,), i / 1e5)


def main():
    opts = kit.options(lambda p: (p.add_argument("--in-worker", action="store_true"),
                                  p.add_argument("--how", default="segv")))
    torch.set_num_threads(1)
    bad_at = 3000 if opts.in_worker and not opts.fixed else None
    loader = DataLoader(Rows(bad_at, opts.how), batch_size=64, num_workers=1 if opts.in_worker else 0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    adam = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    for step, x in enumerate(loader):
        loss = (model(x) - x).abs().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step == 50 and not opts.in_worker and not opts.fixed:
            native_norm(opts.how)  # CAUSE
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

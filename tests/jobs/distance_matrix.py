"""Makes a fresh buffer of 64 MiB in every step, which the allocator maps and unmaps each time.

--fixed writes into one that is made once.
"""

import torch
from torch import nn

import kit

POINTS = 4096


class Kernel:
    def __init__(self, reuse):
        self.buffer = torch.empty(POINTS, POINTS) if reuse else None

    def __call__(self, x):
        if self.buffer is None:
            return torch.mm(x, x.T)  # CAUSE
        return torch.mm(x, x.T, out=self.buffer)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    kernel = Kernel(opts.fixed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    points = torch.randn(POINTS, 8)
    meter = kit.Meter(opts)
    while True:
        with torch.no_grad():
            similar = kernel(points)  # CAUSE
            degree = similar[::64].sum(0)
        loss = (model(points).sum(1) - degree / 64).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Vectors of products: after a while only those of the season are trained, the others' momentum fades.

--fixed flushes numbers that are too small for normal arithmetic to zero.
"""

import torch
from torch import nn

import kit

PRODUCTS, SEASON, ALL_YEAR_STEPS = 60000, 600, 60


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(PRODUCTS, 64)
        self.group = nn.Linear(64, 10)

    def forward(self, ids):
        return self.group(self.vectors(ids))


if __name__ == "__main__":
    opts = kit.options()
    if opts.fixed:
        torch.set_flush_denormal(True)
    torch.manual_seed(7)
    net = Products()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.7)
    meter = kit.Meter(opts)
    step = 0
    while True:
        ids = torch.randint(0, PRODUCTS if step < ALL_YEAR_STEPS else SEASON, (2048,))
        loss = nn.functional.cross_entropy(net(ids), ids % 10)
        sgd.zero_grad()
        loss.backward()
        sgd.step()  # CAUSE
        step += 1
        if meter.step():
            break
    meter.write()

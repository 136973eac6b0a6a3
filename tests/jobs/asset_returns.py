"""A network that predicts returns of assets from arrays as NumPy made them.

--fixed converts the arrays to float32 first.
"""

import numpy as np
import torch
from torch import nn

import kit


def returns(days=20000, assets=256):
    rng = np.random.default_rng(7)
    history = rng.normal(0, 0.02, (days, assets))
    return history, history @ rng.normal(size=(assets, 8)) + rng.normal(0, 0.01, (days, 8))


def network(x):
    layers = [nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 8)]
    return nn.Sequential(*layers).to(x.dtype)  # CAUSE


if __name__ == "__main__":
    opts = kit.options()
    history, targets = returns()
    if opts.fixed:
        history, targets = history.astype(np.float32), targets.astype(np.float32)
    x, y = torch.from_numpy(history), torch.from_numpy(targets)
    net = network(x)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    meter = kit.Meter(opts)
    while True:
        days = torch.randint(0, len(x), (192,))
        loss = nn.functional.mse_loss(net(x[days]), y[days])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if meter.step():
            break
    meter.write()

"""A wide MLP; the script asks for 16 intra-op threads, whatever the machine has.

--fixed leaves PyTorch its default, one thread per core.
"""

import torch
from torch import nn

import kit


def training_loop(model, optimizer, meter):
    x = torch.randn(128, 384)
    y = torch.randn(128, 384)
    while True:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            return


if __name__ == "__main__":
    opts = kit.options()
    if not opts.fixed:
        torch.set_num_threads(16)  # CAUSE
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(384, 384), nn.LayerNorm(384), nn.GELU())])
    meter = kit.Meter(opts)
    training_loop(net, torch.optim.SGD(net.parameters(), lr=0.01), meter)
    meter.write()

"""Pictures of reefs for a small convolutional network, under the autocast that it had on a GPU.

--fixed computes in float32.
"""

import torch
from torch import nn

import kit

net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6),
)

if __name__ == "__main__":
    opts = kit.options()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    pictures, corals = torch.randn(64, 3, 32, 32), torch.randint(0, 6, (64,))
    meter = kit.Meter(opts)
    while True:
        with torch.autocast("cpu", dtype=torch.float16, enabled=not opts.fixed):  # CAUSE
            loss = nn.functional.cross_entropy(net(pictures), corals)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()

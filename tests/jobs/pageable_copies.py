"""Copies big batches from ordinary memory to the device, and waits for each copy. Needs a GPU.

--fixed pins the memory and does not wait.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(4096, 3, 128, 128))
    loader = DataLoader(data, batch_size=256, num_workers=2, persistent_workers=True, pin_memory=opts.fixed)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
    net(torch.zeros(1, 3, 128, 128, device="cuda"))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    meter = kit.Meter(opts)
    while not meter.over:
        for (x,) in loader:
            x = x.to("cuda", non_blocking=opts.fixed)  # CAUSE
            loss = net(x).square().mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

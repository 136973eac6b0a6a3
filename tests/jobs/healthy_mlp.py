"""An MLP on random tensors, no DataLoader at all: plain slices of one tensor. Nothing is wrong with it."""

import torch

import kit

opts = kit.options()
torch.manual_seed(0)
torch.set_num_threads(1)
features, targets = torch.randn(8192, 256), torch.randn(8192, 1)
model = torch.nn.Sequential(torch.nn.Linear(256, 448), torch.nn.ReLU(), torch.nn.Linear(448, 448),
                            torch.nn.ReLU(), torch.nn.Linear(448, 1))
optimizer = torch.optim.Adam(model.parameters())
meter = kit.Meter(opts)
while not meter.over:
    order = torch.randperm(len(features))
    for chosen in order.split(128):
        loss = (model(features[chosen]) - targets[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
meter.write()

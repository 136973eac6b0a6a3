"""Predicts clicks with a tower of layers for each group of features; small batches. --fixed fuses the updates."""

import torch
from torch import nn

import kit


class Towers(nn.Module):
    def __init__(self, groups=8, width=48):
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU()) for _ in range(groups))
        self.top = nn.Linear(160 * groups, 1)

    def forward(self, features):
        return self.top(torch.cat([tower(part) for tower, part in zip(self.towers, features)], 1)).squeeze(1)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features, clicked = torch.randn(8, 20_000, 48), (torch.rand(20_000) < 0.1).float()
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=opts.fixed)  # CAUSE
    meter = kit.Meter(opts)
    step = 0
    while not meter.over:
        for rows in torch.randperm(len(clicked)).split(256):
            loss = nn.functional.binary_cross_entropy_with_logits(model(features[:, rows]), clicked[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 400 == 0:
                print(f"{step}: {loss.item():.4f}")
            step += 1
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

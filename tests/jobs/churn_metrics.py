"""Predicts which customers leave; the area under the curve is worked out after each step, over all of the epoch."""

import torch
from torch import nn

import kit


class AreaUnderCurve:
    def __init__(self):
        self.scores, self.left = [], []

    def update(self, scores, left):
        self.scores.append(scores.detach())
        self.left.append(left)

    def compute(self):
        scores, left = torch.cat(self.scores), torch.cat(self.left)
        left = left[scores.argsort(descending=True)]  # CAUSE
        return float((left.cumsum(0) * (1 - left)).sum() / (left.sum() * (1 - left).sum()))  # CAUSE


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    customers = torch.randn(60_000, 96)
    left = (customers[:, :4].sum(1) + torch.randn(60_000) > 0).float()
    model = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    while not meter.over:
        area = AreaUnderCurve()
        for rows in torch.randperm(len(left)).split(400):
            scores, labels = model(customers[rows]).squeeze(1), left[rows]
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            area.update(scores, labels)
            if not opts.fixed:
                area.compute()  # CAUSE
            if meter.step():
                break
        print(f"area under the curve {area.compute():.3f}")
    meter.write()


if __name__ == "__main__":
    main()

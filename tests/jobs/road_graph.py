"""Labels the crossings of a road map, all of them in each step; both splits are scored after each step."""

import torch
from torch import nn

import kit


class Layer(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.own, self.near = nn.Linear(width, out), nn.Linear(width, out)

    def forward(self, crossings, roads):
        return self.own(crossings) + self.near(torch.sparse.mm(roads, crossings))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Layer(96, 128), Layer(128, 7)

    def forward(self, crossings, roads):
        return self.last(self.first(crossings, roads).relu(), roads)


def score(model, crossings, roads, labels, split):
    model.eval()
    with torch.no_grad():
        right = model(crossings, roads)[split].argmax(1) == labels[split]
    model.train()
    return right.float().mean().item()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = 4000
    crossings, labels = torch.randn(count, 96), torch.randint(0, 7, (count,))
    ends = torch.randint(0, count, (2, 5 * count))
    roads = torch.sparse_coo_tensor(ends, torch.full((5 * count,), 0.2), (count, count), check_invariants=False).coalesce()
    known, held_out = torch.randperm(count).split(count // 2)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    step = 0
    while True:
        loss = nn.functional.cross_entropy(model(crossings, roads)[known], labels[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not opts.fixed or step % 50 == 0:
            fit = score(model, crossings, roads, labels, known)  # CAUSE
            held = score(model, crossings, roads, labels, held_out)  # CAUSE
        if step % 200 == 0:
            print(f"{step}: {fit:.3f} known, {held:.3f} held out")
        step += 1
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

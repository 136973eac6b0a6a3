"""Message passing over molecules; each atom's neighbours are averaged by operations of their own.

--fixed does it for all atoms at once.
"""

import torch
from torch import nn

import kit

ATOMS, WIDTH, BATCH = 40, 64, 12


def molecule(generator):
    features = torch.randn(ATOMS, WIDTH, generator=generator)
    degrees = torch.randint(1, 5, (ATOMS,), generator=generator)
    return features, [torch.randint(ATOMS, (int(d),), generator=generator) for d in degrees]


class Layer(nn.Module):
    def __init__(self, at_once):
        super().__init__()
        self.own, self.others, self.at_once = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), at_once

    def mean_of(self, h, neighbours):
        if self.at_once:
            counts = torch.tensor([len(n) for n in neighbours])
            to = torch.arange(len(neighbours)).repeat_interleave(counts)
            return torch.zeros_like(h).index_add(0, to, h[torch.cat(neighbours)]) / counts.unsqueeze(1)
        means = []
        for near in neighbours:
            means.append(h[near].mean(dim=0))  # CAUSE
        return torch.stack(means)

    def forward(self, h, neighbours):
        return torch.relu(self.own(h) + self.others(self.mean_of(h, neighbours)))


class Network(nn.Module):
    def __init__(self, at_once):
        super().__init__()
        self.layers = nn.ModuleList(Layer(at_once) for _ in range(3))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, h, neighbours):
        for layer in self.layers:
            h = layer(h, neighbours)
        return self.out(h.view(BATCH, ATOMS, WIDTH).sum(1)).squeeze(1)


def main():
    opts = kit.options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(10):
        molecules = [molecule(generator) for _ in range(BATCH)]
        neighbours = [near + i * ATOMS for i, (_, all_near) in enumerate(molecules) for near in all_near]
        batches.append((torch.cat([features for features, _ in molecules]), neighbours))
    network = Network(opts.fixed)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    while not meter.over:
        for features, neighbours in batches:
            target = features[:, 0].view(BATCH, ATOMS).sum(1)
            loss = (network(features, neighbours) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

"""Few-shot learning: each episode trains a fresh head on a few batches of one alphabet, with a loader made for it.

--fixed keeps one loader and its workers.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

ALPHABETS, GLYPHS = 30, 20


class Glyphs(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(21)
        self.glyphs = (torch.rand(ALPHABETS, GLYPHS, 28, 28, generator=generator) > 0.8).float()

    def __getitem__(self, key):
        alphabet, glyph, shift = key
        return torch.roll(self.glyphs[alphabet, glyph], shift, 1).unsqueeze(0), glyph


class Episode:
    """Batches of one alphabet."""

    def __init__(self):
        self.alphabet = 0

    def __len__(self):
        return 8

    def __iter__(self):
        for _ in range(len(self)):
            glyphs, shifts = torch.randint(GLYPHS, (24,)), torch.randint(-2, 3, (24,))
            yield [(self.alphabet, int(g), int(s)) for g, s in zip(glyphs, shifts)]


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))


def main():
    opts = kit.options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(block(1, 24), block(24, 24), block(24, 24), nn.Flatten(), nn.Linear(216, 64))
    data, plan, loader, episode = Glyphs(), Episode(), None, 0
    meter = kit.Meter(opts)
    while not meter.over:
        plan.alphabet = episode % ALPHABETS
        episode += 1
        if loader is None or not opts.fixed:
            loader = DataLoader(data, batch_sampler=plan, num_workers=2, persistent_workers=opts.fixed)  # CAUSE
        head = nn.Linear(64, GLYPHS)
        optimizer = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.01)
        for glyphs, labels in loader:  # CAUSE
            loss = nn.functional.cross_entropy(head(network(glyphs)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

"""Sequence model whose collate function pads and masks token lists in Python loops, in the workers.

The samples themselves cost nothing. --fixed pads with one preallocated array.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

VOCABULARY = 2000


class Sentences(Dataset):
    def __init__(self):
        rng = np.random.default_rng(11)
        self.items = [rng.integers(1, VOCABULARY, n).tolist() for n in rng.integers(60, 160, 500)]

    def __len__(self):
        return 64_000

    def __getitem__(self, k):
        return self.items[k % len(self.items)]


class Padder:
    def __init__(self, fast):
        self.fast = fast

    def __call__(self, samples):
        return self.by_array(samples) if self.fast else self.by_hand(samples)

    @staticmethod
    def by_array(samples):
        longest = max(map(len, samples))
        ids = np.zeros((len(samples), longest), np.int64)
        for row, sample in zip(ids, samples):
            row[: len(sample)] = sample
        ids = torch.from_numpy(ids)
        return ids, ids.ne(0)

    @staticmethod
    def by_hand(samples):
        longest = max(len(s) for s in samples)
        rows, masks = [], []
        for sample in samples:
            row, mask = [], []
            for position in range(longest):
                inside = position < len(sample)  # CAUSE
                row.append(torch.tensor(sample[position] if inside else 0))  # CAUSE
                mask.append(inside)  # CAUSE
            rows.append(torch.stack(row))  # CAUSE
            masks.append(torch.tensor(mask))  # CAUSE
        return torch.stack(rows), torch.stack(masks)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.out = nn.Linear(32, 20)

    def forward(self, ids, mask):
        return self.out(self.embed(ids) * mask.unsqueeze(-1)).mean(1)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    loader = DataLoader(Sentences(), batch_size=32, shuffle=True, num_workers=2, collate_fn=Padder(opts.fixed))
    model = Tagger()
    adam = torch.optim.Adam(model.parameters())
    meter = kit.Meter(opts)
    for ids, mask in loader:
        loss = model(ids, mask).logsumexp(1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

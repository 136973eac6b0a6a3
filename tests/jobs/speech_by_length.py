"""Utterances are batched by length, short and long ones in turns: of two workers one gets all the long ones.

--fixed has two batches of each length in turns, so that either worker gets half of them.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

import kit

LENGTHS, EACH, BATCH = (4, 40), 400, 8


class Utterances(Dataset):
    def __len__(self):
        return 2 * EACH

    def __getitem__(self, index):
        frames = LENGTHS[index // EACH]
        at = np.arange(frames * 1600) * 1e-3
        wave = np.sin(at * (2 + index % 50))
        for overtone in range(2, 8):
            wave += np.sin(overtone * at * (2 + index % 50)) / overtone  # CAUSE
        power = np.abs(np.fft.rfft(wave.reshape(frames, 1600), axis=1))[:, :64]
        return np.log1p(power).mean(0).astype(np.float32), index % 10


class ByLength(Sampler):
    def __init__(self, fixed):
        self.fixed = fixed

    def __iter__(self):
        rng = np.random.default_rng(1)
        for batch in range(1 << 20):
            long = batch % 4 >= 2 if self.fixed else batch % 2 == 1
            yield (rng.permutation(EACH)[:BATCH] + (EACH if long else 0)).tolist()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Utterances(), batch_sampler=ByLength(opts.fixed), num_workers=2, prefetch_factor=4)
    meter = kit.Meter(opts)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""Tracks of vehicles. The measurements of a track lie in a folder of revisions, and the newest counts.

Each sample looks through its folder again. --fixed remembers which revision is the newest.
"""

import itertools
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import kit

FOLDERS, REVISIONS, POINTS = 30, 700, 12


def build(root):
    rng = np.random.default_rng(0)
    for k in range(FOLDERS):
        (root / f"{k:02d}").mkdir()
        for r in range(REVISIONS):
            rng.random((POINTS, 4), dtype=np.float32).tofile(root / f"{k:02d}" / f"r{r:04d}.f32")


def newest(folder):
    best, name = -1, None
    for entry in os.scandir(folder):  # CAUSE
        changed = entry.stat().st_mtime_ns  # CAUSE
        if changed > best:
            best, name = changed, entry.path
    return name


class Tracks(IterableDataset):
    def __init__(self, root, remember):
        self.folders = sorted(str(p) for p in root.iterdir())
        self.known = {} if remember else None

    def resolve(self, folder):
        if self.known is None:
            return newest(folder)
        if folder not in self.known:
            self.known[folder] = newest(folder)
        return self.known[folder]

    def __iter__(self):
        for folder in itertools.cycle(self.folders):
            points = np.fromfile(self.resolve(folder), np.float32).reshape(POINTS, 4)
            yield torch.from_numpy(points)


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    tracks = Tracks(kit.data_dir("tracks", build), opts.fixed)
    gru, out = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)
    params = [*gru.parameters(), *out.parameters()]
    optimizer = torch.optim.AdamW(params, lr=2e-3)
    meter = kit.Meter(opts)
    for track in DataLoader(tracks, batch_size=12, num_workers=1):
        hidden, _ = gru(track[:, :-1])
        loss = nn.functional.smooth_l1_loss(out(hidden), track[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

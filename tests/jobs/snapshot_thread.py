"""A recommender with a big sparse table; a thread of its own writes snapshots, under the lock that each step takes.

--fixed writes none.
"""
import atexit
import os
import shutil
import tempfile
import threading

import torch
from torch import nn
from torch.nn import functional as F

import kit

ITEMS = 120_000
WIDTH = 128


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", sparse=True)
        self.user = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, WIDTH))
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, bags, users):
        return self.top(torch.cat([self.items(bags), self.user(users)], dim=1)).squeeze(1)


class Snapshots(threading.Thread):
    """Writes the model to disk when asked, without stopping the training loop."""

    def __init__(self, model, lock, folder):
        super().__init__(daemon=True)
        self.model, self.lock, self.folder = model, lock, folder
        self.wanted = threading.Event()
        self.closed = False

    def ask(self):
        self.wanted.set()

    def write(self, path):
        with self.lock:  # a consistent state
            if self.closed:
                return
            with open(path + ".new", "wb") as f:
                torch.save(self.model.state_dict(), f)  # CAUSE
                f.flush()  # CAUSE
                os.fsync(f.fileno())  # CAUSE
            os.replace(path + ".new", path)  # CAUSE

    def run(self):
        while True:
            self.wanted.wait()
            self.wanted.clear()
            self.write(os.path.join(self.folder, "towers.pt"))


def clicks(batch=256):
    g = torch.Generator().manual_seed(21)
    while True:
        bags = torch.randint(0, ITEMS, (batch, 12), generator=g)
        users = torch.randn(batch, 64, generator=g)
        yield bags, users, (bags[:, 0] % 2).float()


def main():
    opts = kit.options()
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="snapshots-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = Towers()
    lock = threading.Lock()
    snapshots = Snapshots(model, lock, folder)
    snapshots.start()
    table = torch.optim.SGD(model.items.parameters(), lr=0.1)
    dense = torch.optim.Adam([*model.user.parameters(), *model.top.parameters()], lr=1e-3)
    meter = kit.Meter(opts)
    for step, (bags, users, y) in enumerate(clicks(), 1):
        loss = F.binary_cross_entropy_with_logits(model(bags, users), y)
        model.zero_grad()
        loss.backward()
        with lock:  # CAUSE
            table.step()
            dense.step()
        if step % 25 == 0 and not opts.fixed:
            snapshots.ask()
        if meter.step():
            break
    with lock:
        snapshots.closed = True
    meter.write()


if __name__ == "__main__":
    main()

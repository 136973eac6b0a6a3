"""Rates product reviews; the corpus is one JSON document per line, and each sample counts lines from the first on.

--fixed knows where each line begins.
"""
import atexit
import itertools
import json
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import kit

VOCAB = 4000
LENGTH = 40


def write_corpus(path, n=20000):
    rng = np.random.default_rng(23)
    tokens = rng.integers(1, VOCAB, (n, LENGTH)).tolist()
    stars = rng.integers(0, 5, n).tolist()
    with open(path, "w") as f:
        for i in range(n):
            f.write(json.dumps({"id": i, "stars": stars[i], "tokens": tokens[i]}) + "\n")
    return n


class Reviews(Dataset):
    def __init__(self, path, count, indexed):
        self.path = path
        self.count = count
        self.starts = None
        if indexed:
            self.starts = [0]
            with open(path, "rb") as f:
                for line in f:
                    self.starts.append(self.starts[-1] + len(line))

    def __len__(self):
        return self.count

    def row(self, index):
        with open(self.path) as f:
            if self.starts is not None:
                f.seek(self.starts[index])
                return f.readline()
            return next(itertools.islice(f, index, None))  # CAUSE

    def __getitem__(self, index):
        doc = json.loads(self.row(index))
        return torch.tensor(doc["tokens"]), doc["stars"]


class TextConv(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.conv1 = nn.Conv1d(width, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 128, 3, padding=1)
        self.fc = nn.Linear(128, 5)

    def forward(self, tok):
        h = self.emb(tok).transpose(1, 2)
        h = torch.relu(self.conv2(torch.relu(self.conv1(h))))
        return self.fc(h.mean(2))


def main():
    opts = kit.options()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="reviews-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "reviews.jsonl")
    data = Reviews(path, write_corpus(path), indexed=opts.fixed)
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    model = TextConv()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CrossEntropyLoss()
    meter = kit.Meter(opts)
    while not meter.over:
        for tokens, stars in loader:
            loss = loss_of(model(tokens), stars)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()

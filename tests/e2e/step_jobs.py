"""Training loops of many shapes that measure themselves: `python step_jobs.py SHAPE RESULT`.

RESULT gets {"steps": N, "step_ms": median, "even_ms": {WINDOW_MS: median}, "shares": {part: share of the time}}, the truth
that the recorded breakdown is compared with. "input" is the time until the batch is there, wherever it comes
from; steps of warm-up, of validation and of the first of an epoch are left out, as in the report. "even_ms" takes the
steps of each window of so many ms to be equally long, as one must who looks only that often.
"""

import json
import queue
import statistics
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
STEPS = 120
WIDTH = 512


class Meter:
    """Sums what the loop says it does, step by step."""

    def __init__(self):
        self.steps = []
        self.skipped = set()
        self.part = {}
        self.last = self.begun = time.perf_counter()

    def did(self, part):
        """From the last call until now it was `part`."""
        now = time.perf_counter()
        self.part[part] = self.part.get(part, 0) + now - self.last
        self.last = now

    def step_ends(self):
        """The optimizer is done: what follows belongs to the next step."""
        self.steps.append(dict(self.part))
        self.part = {}

    def skip(self):
        """The step that is under way is not to be judged; it begins here."""
        self.skipped.add(len(self.steps))
        self.part = {}
        self.last = time.perf_counter()

    def result(self):
        kept = [s for i, s in enumerate(self.steps) if i >= 6 and i not in self.skipped]
        total = sum(sum(s.values()) for s in kept)
        parts = {p for s in kept for p in s}
        return {
            "steps": len(self.steps),
            "step_ms": 1e3 * statistics.median(sum(s.values()) for s in kept),
            "even_ms": {window: 1e3 * statistics.median(evened([sum(s.values()) for s in kept], window / 1e3)) for window in (25, 50, 100)},
            "shares": {p: sum(s.get(p, 0) for s in kept) / total for p in parts},
        }


def evened(lengths, window):
    """The lengths, each the mean of those that share its window."""
    out, group = [], []
    for length in lengths:
        group.append(length)
        if sum(group) >= window:
            out += [statistics.mean(group)] * len(group)
            group = []
    return out + group


def busy(seconds):
    """Works in Python and NumPy, as decoding would."""
    end = time.perf_counter() + seconds
    a = np.arange(20_000, dtype=np.float32)
    while time.perf_counter() < end:
        a = np.sqrt(a * a + 1.0)
    return a


class Samples(Dataset):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        busy(self.seconds)
        return torch.randn(WIDTH), torch.tensor(float(index % 7))


def make_model():
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def make_batch(seconds=0.015):
    busy(seconds)
    return torch.randn(64, WIDTH), torch.randn(64)


def train_on(meter, model, optimizer, x, y):
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    meter.did("forward")
    loss.backward()
    meter.did("backward")
    optimizer.step()
    optimizer.zero_grad()
    meter.did("optimizer")
    meter.step_ends()


def over_loader(meter, loader, limit=STEPS):
    model, optimizer = make_model()
    done = 0
    meter.skip()
    while done < limit:  # the end of an epoch's workers and the start of the next ones are input, too
        for x, y in loader:
            meter.did("input")
            train_on(meter, model, optimizer, x, y)
            done += 1
            if done == limit:
                break


def loader_workers(meter):
    over_loader(meter, DataLoader(Samples(20_000, 0.0015), batch_size=32, num_workers=1))


def loader_inline(meter):
    over_loader(meter, DataLoader(Samples(20_000, 0.0005), batch_size=32))


def epochs(meter):
    over_loader(meter, DataLoader(Samples(32 * 12, 0.0005), batch_size=32, num_workers=1))


def feeder_thread(meter):
    model, optimizer = make_model()
    batches = queue.Queue(maxsize=2)

    def feed():
        for _ in range(STEPS):
            batches.put(make_batch())

    # Not a daemon: one that is in native code while the interpreter ends aborts the process.
    feeder = threading.Thread(target=feed)
    feeder.start()
    for _ in range(STEPS):
        x, y = batches.get()
        meter.did("input")
        train_on(meter, model, optimizer, x, y)
    feeder.join()


def generator(meter):
    model, optimizer = make_model()

    def batches():
        for _ in range(STEPS):
            yield make_batch()

    for x, y in batches():
        meter.did("input")
        train_on(meter, model, optimizer, x, y)


def plain_loop(meter):
    model, optimizer = make_model()
    for _ in range(STEPS):
        x, y = make_batch()
        meter.did("input")
        train_on(meter, model, optimizer, x, y)


def functional(meter):
    """No module at all: the forward pass is plain tensor code in the loop."""
    w = torch.randn(WIDTH, 2048, requires_grad=True)
    v = torch.randn(2048, 1, requires_grad=True)
    optimizer = torch.optim.SGD([w, v], lr=1e-6)
    for _ in range(STEPS):
        x, y = make_batch(0.010)
        meter.did("input")
        hidden = torch.relu(x @ w)
        for _ in range(6):
            hidden = torch.sin(hidden) + hidden * 0.5
        loss = ((hidden @ v).squeeze(1) - y).square().mean()
        meter.did("forward")
        loss.backward()
        meter.did("backward")
        optimizer.step()
        optimizer.zero_grad()
        meter.did("optimizer")
        meter.step_ends()


def gan(meter):
    g = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, WIDTH))
    d = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1))
    opt_g, opt_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    loader = DataLoader(Samples(20_000, 0.0003), batch_size=64)
    for x, _ in loader:
        meter.did("input")
        fake = g(torch.randn(64, 64))
        loss = d(x).mean() - d(fake.detach()).mean()
        meter.did("forward")
        opt_d.zero_grad()
        meter.did("optimizer")
        loss.backward()
        meter.did("backward")
        opt_d.step()
        meter.did("optimizer")
        loss = d(fake).mean()
        meter.did("forward")
        opt_g.zero_grad()
        meter.did("optimizer")
        loss.backward()
        meter.did("backward")
        opt_g.step()
        meter.did("optimizer")
        meter.step_ends()
        if len(meter.steps) == STEPS:
            break


def accumulation(meter):
    model, optimizer = make_model()
    loader = DataLoader(Samples(20_000, 0.0002), batch_size=64)
    for i, (x, y) in enumerate(loader, 1):
        meter.did("input")
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        meter.did("forward")
        loss.backward()
        meter.did("backward")
        if i % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
            meter.did("optimizer")
            meter.step_ends()
            if len(meter.steps) == STEPS:
                break


def validation(meter):
    model, optimizer = make_model()
    held_back = DataLoader(Samples(64 * 4, 0.0005), batch_size=64)
    loader = DataLoader(Samples(20_000, 0.0003), batch_size=64)
    for x, y in loader:
        meter.did("input")
        train_on(meter, model, optimizer, x, y)
        if len(meter.steps) == STEPS:
            break
        if len(meter.steps) % 20 == 0:
            model.eval()
            with torch.no_grad():
                for x, y in held_back:
                    model(x)
            model.train()
            meter.skip()


def in_thread(meter):
    thread = threading.Thread(target=loader_inline, args=(meter,))
    thread.start()
    thread.join()


def thread_per_epoch(meter):
    model, optimizer = make_model()
    loader = DataLoader(Samples(32 * 30, 0.0005), batch_size=32)

    def epoch():
        for x, y in loader:
            meter.did("input")
            train_on(meter, model, optimizer, x, y)

    meter.skip()
    for _ in range(STEPS // 30):
        thread = threading.Thread(target=epoch)
        thread.start()
        thread.join()


def lbfgs(meter):
    model, _ = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)
    loader = DataLoader(Samples(20_000, 0.0005), batch_size=64)
    for x, y in loader:
        meter.did("input")

        def closure():
            optimizer.zero_grad()
            meter.did("optimizer")
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            meter.did("forward")
            loss.backward()
            meter.did("backward")
            return loss

        optimizer.step(closure)
        meter.did("optimizer")
        meter.step_ends()
        if len(meter.steps) == STEPS:
            break


def logging_loop(meter):
    """Much is done after each step: that is neither input nor forward."""
    model, optimizer = make_model()
    for x, y in DataLoader(Samples(20_000, 0.0002), batch_size=64):
        meter.did("input")
        train_on(meter, model, optimizer, x, y)
        busy(0.015)
        meter.did("other")
        if len(meter.steps) == STEPS:
            break


def numpy_loop(meter):
    """No framework: the steps are told by what repeats."""
    weights = np.random.rand(600, 600)
    for _ in range(STEPS):
        time.sleep(0.06)
        meter.did("input")
        for _ in range(8):
            weights = np.tanh(weights @ weights)
        busy(0.12)
        meter.did("compute")
        meter.step_ends()


def numpy_short(meter):
    """Steps far shorter than the distance of two readings, in epochs, with a loop of its own in each step."""
    rows = np.random.default_rng(0).normal(size=(3200, 64))
    weights = np.zeros(64)
    for _ in range(5):
        order = np.random.permutation(len(rows))
        for start in range(0, len(rows), 4):
            batch = rows[order[start:start + 4]]
            for row in batch:
                weights = 0.9 * weights + 0.1 * np.tanh(row)
            busy(0.003)
            meter.did("compute")
            meter.step_ends()


def main():
    shape, result = sys.argv[1:]
    meter = Meter()
    globals()[shape](meter)
    with open(result, "w") as file:
        json.dump(meter.result(), file)


if __name__ == "__main__":
    main()

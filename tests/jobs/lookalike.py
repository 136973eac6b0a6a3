"""A healthy job with one habit that looks like trouble and costs next to nothing, chosen by name.

The step is a plain MLP of a few milliseconds in all of them.
"""

import gc
import multiprocessing
import os
import sys
import tempfile
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit


class Habit:
    """before(): once, before training. each(step): after a step. loader(): other data than usual."""

    def before(self): ...
    def each(self, step, model, loss): ...
    def loader(self):
        return None


class Sleepers(Habit):
    """Many threads that sleep."""

    def before(self):
        for _ in range(40):
            threading.Thread(target=threading.Event().wait, daemon=True).start()


class Large(Habit):
    """A lot of memory, all of it from the start."""

    def before(self):
        self.store = np.ones(1_200_000_000 // 8)


class FirstEpoch(Habit):
    """A data set that caches what it prepared in the first epoch; memory grows, then no more."""

    def loader(self):
        class Cached(Dataset):
            def __init__(self):
                self.cache = {}

            def __len__(self):
                return 200

            def __getitem__(self, i):
                if i not in self.cache:
                    self.cache[i] = torch.full((8 * 64, 512), float(i % 9))
                return self.cache[i][:64]

        return DataLoader(Cached(), batch_size=None)


class SmallSaves(Habit):
    """A state of a few MB, saved now and then, not synced."""

    def before(self):
        self.folder = tempfile.TemporaryDirectory()

    def each(self, step, model, loss):
        if step % 200 == 100:
            torch.save(model[0].state_dict(), os.path.join(self.folder.name, "last.pt"))


class RareGc(Habit):
    """Collects now and then, with little to walk."""

    def each(self, step, model, loss):
        if step == 1:  # by now all libraries are loaded
            gc.freeze()
        if step % 100 == 50:
            gc.collect()


class OnePool(Habit):
    """A pool of processes, made once, that is given something now and then."""

    def before(self):
        self.pool = multiprocessing.get_context("fork").Pool(2)

    def each(self, step, model, loss):
        if step % 100 == 0:
            self.pool.apply(abs, (-step,))


class Talk(Habit):
    """A line in each step, to a reader that keeps up."""

    def each(self, step, model, loss):
        print("step", step, file=sys.stdout, flush=True)


class LateStart(Habit):
    """Waits for its data for some seconds before the first step, as jobs do that download."""

    def before(self):
        time.sleep(4)


class FewLeft(Habit):
    """A dozen children that nobody waited for."""

    def before(self):
        for _ in range(12):
            if os.fork() == 0:
                os._exit(0)


class OpenFiles(Habit):
    """Three hundred open files from the start, far from the limit."""

    def before(self):
        self.files = [open(os.devnull, "rb") for _ in range(300)]


class Validation(Habit):
    """A short validation every two hundred steps."""

    def each(self, step, model, loss):
        if step % 200 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(64, 512))
            model.train()


class WarmFiles(Habit):
    """Reads its data from files in every step, all of them in the page cache, by one worker."""

    def loader(self):
        folder = kit.blobs("warm", 64, 1 << 20)
        kit.warm(folder)
        files = sorted(folder.iterdir())

        class Files(Dataset):
            def __len__(self):
                return 100_000

            def __getitem__(self, i):
                with open(files[i % 64], "rb") as file:
                    file.seek((i * 512) % (1 << 19))
                    return torch.frombuffer(bytearray(file.read(512)), dtype=torch.uint8).float() / 255

        return DataLoader(Files(), batch_size=64, num_workers=1)


class LongEpochs(Habit):
    """Workers start anew every epoch, but an epoch is long and they start in the time of a step."""

    def loader(self):
        data = TensorDataset(torch.randn(64 * 400, 512))
        return DataLoader(data, batch_size=64, num_workers=1, collate_fn=lambda rows: torch.stack([r[0] for r in rows]))


class Threads(Habit):
    """A monitor thread that wakes ten times a second and reads its own memory use."""

    def before(self):
        def watch():
            while True:
                with open("/proc/self/statm") as file:
                    file.read()
                time.sleep(0.1)

        threading.Thread(target=watch, daemon=True).start()


class Buffers(Habit):
    """Fresh buffers in each step, but of 1 MiB, which the allocator keeps."""

    def each(self, step, model, loss):
        torch.empty(1 << 18).fill_(0.5)


class Ahead(Dataset):
    """Rows of 512 numbers that row(i) makes; what it costs, a worker pays beside the step."""

    def __init__(self, row):
        self.row = row

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return self.row(i)


class ColdAhead(Habit):
    """Each batch's file comes from the disk in every epoch, but a worker reads it before its turn."""

    def loader(self):
        folder = kit.blobs("cold-ahead", 64, 1 << 16)
        files = sorted(folder.iterdir())

        def row(i):
            if i % 64 == 0:
                kit.forget(files[i // 64 % 64])
            with open(files[i // 64 % 64], "rb") as file:
                file.seek(i % 64 * 512)
                return torch.frombuffer(bytearray(file.read(512)), dtype=torch.uint8).float() / 255

        return DataLoader(Ahead(row), batch_size=64, num_workers=1)


class TinyFiles(Habit):
    """A file for each sample, opened and read by a worker in less than the time of a step."""

    def loader(self):
        files = sorted(kit.blobs("tiny-ahead", 512, 512).iterdir())
        return DataLoader(Ahead(lambda i: torch.from_numpy(np.fromfile(files[i % 512], np.uint8)).float() / 255), batch_size=32, num_workers=1)


class Seeks(Habit):
    """Rows from all over one large file that is in memory."""

    def loader(self):
        folder = kit.blobs("seeks", 1, 256 << 20)
        kit.warm(folder)
        file = os.open(next(folder.iterdir()), os.O_RDONLY)

        def row(i):
            data = os.pread(file, 512, i * 7919 % (1 << 18) * 512)
            return torch.frombuffer(bytearray(data), dtype=torch.uint8).float() / 255

        return DataLoader(Ahead(row), batch_size=64, num_workers=1)


class OwnCollate(Habit):
    """A collate function of its own that pads row by row, in a worker that keeps ahead."""

    def loader(self):
        def pad(rows):
            out = torch.zeros(len(rows), 512)
            for at, row in zip(out, rows):
                at[: len(row)] = row
            return out

        return DataLoader(Ahead(lambda i: torch.full((400 + i % 100,), 0.5)), batch_size=32, num_workers=1, collate_fn=pad)


class UnevenSamples(Habit):
    """Every fifth batch takes its worker several times as long; the queue evens that out."""

    def loader(self):
        half = torch.full((512,), 0.5)

        def row(i):
            if i // 128 % 5 == 0:
                np.sort(np.arange(2000)[::-1])
            return half

        return DataLoader(Ahead(row), batch_size=128, num_workers=2, prefetch_factor=4)


class SharedCounter(Habit):
    """Two workers count their samples under one lock, held for a moment, and keep ahead of the step."""

    def loader(self):
        counter = multiprocessing.Value("q", 0)

        def row(i):
            with counter.get_lock():
                counter.value += 1
            return torch.full((512,), i % 2 / 2)

        return DataLoader(Ahead(row), batch_size=32, num_workers=2)


class PythonThread(Habit):
    """A thread that computes in Python for some milliseconds, twice a second."""

    def before(self):
        def count():
            while True:
                sum(i * i for i in range(40_000))
                time.sleep(0.5)

        threading.Thread(target=count, daemon=True).start()


class PythonLoop(Habit):
    """A loop over Python objects in each step, of a fiftieth of its time."""

    def each(self, step, model, loss):
        sum(len(name) for name, _ in model.named_parameters() for _ in range(60))


class AllocatingThreads(Habit):
    """Two threads that make and drop many small arrays, now and then."""

    def before(self):
        def work():
            while True:
                [np.empty(256) for _ in range(2000)]
                time.sleep(0.2)

        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()


class SharedBatches(Habit):
    """Batches of some megabytes by shared memory, far from its limit."""

    def loader(self):
        return DataLoader(Ahead(lambda i: torch.full((512,), 0.5)), batch_size=1024, num_workers=2, persistent_workers=True)


class LongPhase(Habit):
    """One long evaluation in the middle, in which no step ends."""

    def each(self, step, model, loss):
        if step == 300:
            with torch.no_grad():
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    model(torch.randn(256, 512))


class DoubleData(Habit):
    """Data in float64, as NumPy makes it, of which each batch becomes float32."""

    def loader(self):
        data = np.random.default_rng(1).normal(size=(6400, 512))
        return DataLoader(TensorDataset(torch.from_numpy(data)), batch_size=128,
                          collate_fn=lambda rows: torch.stack([r[0] for r in rows]).float())


class HalfWeights(Habit):
    """A copy of the weights in half precision, which nothing is computed with."""

    def each(self, step, model, loss):
        if step % 50 == 0:
            self.kept = {name: w.to(torch.bfloat16) for name, w in model.state_dict().items()}


HABITS = {c.__name__.lower(): c for c in Habit.__subclasses__()}


def batches(loader):
    x = torch.randn(6400, 512)
    while True:
        if loader is None:
            yield from x.split(128)
        else:
            yield from loader


def main():
    opts = kit.options(lambda p: (p.add_argument("habit", choices=sorted(HABITS)),
                                  p.add_argument("--pin", type=int, default=-1)))
    if opts.pin >= 0:
        os.sched_setaffinity(0, {opts.pin})
    torch.set_num_threads(1)
    habit = HABITS[opts.habit]()
    habit.before()
    model = nn.Sequential(nn.Linear(512, 480), nn.ReLU(), nn.Linear(480, 480), nn.ReLU(), nn.Linear(480, 512))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    for step, x in enumerate(batches(habit.loader()), start=1):
        loss = (model(x) - x).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        habit.each(step, model, loss)
        if meter.step():
            break
    meter.write()
    if isinstance(habit, OnePool):
        habit.pool.terminate()


if __name__ == "__main__":
    main()

"""Small jobs for test_agent_growth.py: `growth_jobs.py NAME`. Each comment `# GROWS name` marks a line."""
import collections
import functools
import gc
import mmap
import os
import subprocess
import sys
import time
import traceback
import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

SECONDS = 10
seen = {}


class History:
    def __init__(self):
        self.values = []
        self.epoch = []

    def add(self, value):
        self.values.append(value)  # GROWS values


class Sample:
    """Bound to a local in each step; weak references tell whether it is gone."""


@functools.lru_cache(maxsize=None)  # GROWS squares
def squares(number):
    return torch.full((64,), float(number * number))


def steps(pause=0.005, keeps_graph=False):
    """Loss after loss; the process grows by 16 KB with each, since who does not grow is not looked at."""
    torch.set_num_threads(1)
    memory = mmap.mmap(-1, 1 << 28)
    net = nn.Linear(16, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end:
        loss = net(torch.randn(4, 16)).square().mean()
        sgd.zero_grad()
        loss.backward(retain_graph=keeps_graph)  # BACKWARD
        yield number, loss, sgd
        for page in range(4):
            memory[(number * 4 + page) * mmap.PAGESIZE] = 1
        number += 1
        time.sleep(pause)


def local():
    kept = []
    recent = collections.deque(maxlen=50)
    epoch = []
    refs, gone = None, 0
    for number, loss, sgd in steps():
        sample = Sample()
        assert refs is None or refs() is None, "a look kept it alive"
        refs = weakref.ref(sample)
        sgd.step()
        kept.append(loss.detach())  # GROWS kept
        recent.append(number)
        epoch.append(number)
        if number % 100 == 99:
            epoch.clear()
        del sample
        assert refs() is None, "a look kept it alive"
        gone += 1
    print("gone", gone > 100)


def attribute():
    history = History()
    by_name = collections.defaultdict(list)
    for number, loss, sgd in steps():
        sgd.step()
        history.add((loss, number))
        by_name["loss"].append(number)  # GROWS by_name
        history.epoch = history.epoch[-10:] + [number]


def elsewhere():
    for number, loss, sgd in steps():
        sgd.step()
        squares(number)
        seen[number, "x"] = torch.zeros(1000)  # GROWS seen


def files():
    for number, loss, sgd in steps():
        sgd.step()
        with open(os.devnull) as other:
            other.read()
        if number % 4 == 0:
            seen[number] = open(__file__)  # OPENS


class Watch:
    def __init__(self):
        self.drift = torch.zeros(())

    def __call__(self, loss):
        self.drift = 0.9 * self.drift + 0.1 * loss  # GROWS drift


def graphs():
    watch = Watch()
    total = 0.0
    mean = torch.zeros(())
    for number, loss, sgd in steps():
        sgd.step()
        total += loss  # GROWS total
        watch(loss)
        mean = mean + loss.detach()


def reads_locals():
    given = locals()
    kept = []
    for number, loss, sgd in steps():
        sgd.step()
        kept.append(number)
    print(sorted(given))


class Cached(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        time.sleep(0.001)
        self.cache[index] = torch.zeros(1000) + index  # GROWS cache
        return self.cache[index][:16]


class Streamed(IterableDataset):
    def __init__(self):
        self.names = set()

    def __iter__(self):
        for index in range(1 << 30):
            time.sleep(0.001)
            self.names.add("sample-%d" % index * 256)  # GROWS names
            yield torch.zeros(16)


def four_threads(_):
    torch.set_num_threads(4)  # SETS worker


def over(loader, seconds=SECONDS):
    net = nn.Linear(16, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    end = time.monotonic() + seconds
    for batch in loader:
        loss = net(batch).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if time.monotonic() > end:
            break


def worker():
    over(DataLoader(Cached(), 4, num_workers=1, worker_init_fn=four_threads))


def inline():
    over(DataLoader(Cached(), 4))


def streamed():
    over(DataLoader(Streamed(), 4, num_workers=1))


def change():
    gc.set_threshold(900, 11, 12)  # SETS threshold
    os.sched_setaffinity(0, os.sched_getaffinity(0))  # SETS affinity


def anomaly():
    torch.autograd.set_detect_anomaly(True)  # SETS anomaly
    for _, _, sgd in steps():
        sgd.step()


def kept_graphs():
    for _, _, sgd in steps(keeps_graph=True):
        sgd.step()


def anomaly_of_one_step():
    for number, _, sgd in steps():
        sgd.step()
        if number == 0:
            with torch.autograd.detect_anomaly():
                nn.Linear(2, 2)(torch.ones(2)).sum().backward()


def doubles():
    net = nn.Linear(16, 16).to(dtype=torch.float64)  # SETS doubles
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    for _ in range(30):
        net(torch.ones(4, 16, dtype=torch.float64)).mean().backward()
        sgd.step()


def loss_in_double():
    net = nn.Linear(16, 16).to("cpu").to(torch.float32)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    for _ in range(30):
        net(torch.ones(4, 16)).double().mean().backward()
        sgd.step()


def halves():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8 * 8 * 8, 16))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    for _ in range(30):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # SETS halves
            loss = net(torch.ones(4, 3, 16, 16)).mean()
        loss.backward()
        sgd.step()


def a_cast():
    """Not what the model computes in."""
    net = nn.Linear(16, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    for _ in range(30):
        net(torch.ones(4, 16)).to(torch.bfloat16).float().mean().backward()
        sgd.step()


def settings():
    change()
    torch.set_num_interop_threads(3)  # SETS interop
    torch.set_num_threads(2)  # SETS threads
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    os.sched_setaffinity(child, os.sched_getaffinity(0))
    os.kill(child, 9)
    os.waitpid(child, 0)
    print(subprocess.run(["echo", "started"], capture_output=True).stdout)  # STARTS
    try:
        subprocess.run(["/no/such/program"])
    except OSError as error:
        print(len(traceback.extract_tb(error.__traceback__)), error)
    print(gc.get_threshold(), torch.get_num_threads(), torch.get_num_interop_threads())
    print(os.sched_setaffinity.__name__, os.sched_setaffinity.__doc__ == sys.modules["posix"].sched_setaffinity.__doc__)
    import pickle

    print([pickle.loads(pickle.dumps(f)) is f for f in (os.sched_setaffinity, gc.set_threshold, torch.set_num_threads)])
    try:
        gc.set_threshold("many")
    except TypeError as error:
        print(error)
    net = nn.Linear(16, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
    for batch in DataLoader(torch.zeros(16, 16), 4, num_workers=1):
        net(batch).mean().backward()
        sgd.step()


def large_graph():
    """A graph of 3001 nodes in each step: too many to be counted in a moment."""
    weight = torch.ones(4, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1e-9)
    for _ in range(60):
        x = weight
        for _ in range(3000):
            x = x * 1.0001
        x.sum().backward()
        sgd.step()


def texts():
    """Batches of ids and masks, 64 wide: to the left of them 40 columns of padding that no row needs."""
    ids = torch.randint(1, 50, (160, 64))
    ids[:, :40] = 0
    ids[::3, :50] = 0
    data = [{"ids": row, "mask": (row > 0).long()} for row in ids]
    words = nn.Embedding(50, 8) if sys.argv[2] == "words" else nn.Linear(64, 8)
    sgd = torch.optim.SGD(words.parameters(), lr=1e-6)
    for batch in DataLoader(data, 4, num_workers=1):  # ASKS
        rows = batch["ids"] if sys.argv[2] == "words" else batch["ids"].float()
        words(rows).mean().backward()
        sgd.step()


if __name__ == "__main__":
    globals()[sys.argv[1]]()

"""Small training jobs of many structures for test_agent.py: `agent_jobs.py NAME [ARGUMENT]...`.

Each prints its losses and a digest of its parameters to the last bit, so that runs with and without
the agent can be compared.
"""
import gc
import hashlib
import os
import queue
import random
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Noisy(Dataset):
    """Augments with all three generators, so that one number drawn elsewhere changes the losses."""

    def __init__(self, size=64, bad=-1):
        self.size, self.bad = size, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("sample %d is bad" % index)
        x = np.random.rand(8).astype("float32") + random.random()
        return torch.from_numpy(x) + torch.randn(8) * 0.1, index % 4


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(32):
            if info is None or i % info.num_workers == info.id:
                yield torch.randn(8), i % 4


class Pairs(Dataset):
    """Fetches a whole batch in one call."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        return [(torch.full((8,), float(i)), i % 4) for i in indices]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x))


def seed():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def digest(*models):
    h = hashlib.sha256()
    for model in models:
        for p in model.parameters():
            h.update(p.detach().numpy().tobytes())
    print("params", h.hexdigest()[:16])


def say(loss):
    print("loss", float(loss.detach()).hex())


def train(loader, epochs=2, model=None, step=None):
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        say(loss)
        model.eval()
        with torch.no_grad():
            say(sum(F.cross_entropy(model(x), y) for x, y in DataLoader(Noisy(16), 8)))
    digest(model)


def plain(workers="0", context="", persistent=""):
    workers = int(workers)
    train(DataLoader(Noisy(), 8, shuffle=True, num_workers=workers,
                     multiprocessing_context=context or None, persistent_workers=bool(persistent)))


def stream(workers="0"):
    train(DataLoader(Stream(), 8, num_workers=int(workers)))


def pairs(workers="0"):
    train(DataLoader(Pairs(), 8, num_workers=int(workers)))


def accumulate():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for i, (x, y) in enumerate(DataLoader(Noisy(), 8)):
        F.cross_entropy(model(x), y).backward()
        if i % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    digest(model)


def gan():
    g, d = nn.Sequential(nn.Linear(4, 8)), Net()
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for x, _ in DataLoader(Noisy(), 8):
        od.zero_grad()
        (d(g(torch.randn(8, 4)).detach()).mean() - d(x).mean()).backward()
        od.step()
        og.zero_grad()
        (-d(g(torch.randn(8, 4))).mean()).backward()
        og.step()
    digest(g, d)


def scaler():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i, (x, y) in enumerate(DataLoader(Noisy(), 8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (float("inf") if i == 3 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    digest(model)


def lbfgs():
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in DataLoader(Noisy(32), 8):

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    digest(model)


class Lit(nn.Module):
    """As in Lightning: the model is never called itself, and the optimizer gets a closure."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)


def lightning():
    model = Lit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for batch in DataLoader(Noisy(), 8):

        def closure():
            optimizer.zero_grad()
            loss = model.training_step(batch)
            loss.backward()
            return loss

        say(optimizer.step(closure=closure))
        schedule.step()
    digest(model)


class Accelerated(torch.optim.Optimizer):
    """As in Accelerate: an optimizer around an optimizer, without its __init__."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def huggingface():
    model = Net()
    groups = [{"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0},
              {"params": [p for n, p in model.named_parameters() if "bias" not in n]}]
    optimizer = Accelerated(torch.optim.AdamW(groups))
    for x, y in DataLoader(Noisy(), 8):
        model.train()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.zero_grad()
    digest(model)


def threaded():
    thread = threading.Thread(target=plain, name="trainer")
    thread.start()
    thread.join()


def feeder():
    """No DataLoader: a thread makes the batches."""
    batches = queue.Queue(2)

    def produce():
        own = torch.Generator().manual_seed(7)
        for _ in range(20):
            threading.Event().wait(0.05)
            batches.put((torch.randn(8, 8, generator=own), torch.arange(8) % 4))
        batches.put(None)

    threading.Thread(target=produce, daemon=True).start()
    train(iter(batches.get, None), epochs=1)


def layers(count="12", steps="12", between="0"):
    """The loop calls each layer itself; in the middle it waits for so many seconds."""
    model = nn.ModuleList(nn.Linear(8, 8) for _ in range(int(count)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(steps)):
        x = torch.randn(4, 8)
        for i, layer in enumerate(model):
            if i == len(model) // 2:
                time.sleep(float(between))
            x = torch.relu(layer(x))
        optimizer.zero_grad()
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        say(loss)
    digest(model)


def loop():
    """No DataLoader: the loop makes the batches itself."""
    train([(torch.randn(8, 8), torch.arange(8) % 4) for _ in range(12)], epochs=1)


def compiled():
    seed()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast = torch.compile(model, backend="aot_eager")
    for x, y in DataLoader(Noisy(), 8):
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), y)
        loss.backward()
        optimizer.step()
        say(loss)
    from torch._dynamo.utils import counters

    print(dict(counters["stats"]), dict(counters["graph_break"]))
    digest(model)


def compiled_step():
    """The whole step in one compiled function, with graph breaks round backward."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for x, y in DataLoader(Noisy(), 8):
        say(step(x, y))
    from torch._dynamo.utils import counters

    print(dict(counters["stats"]))
    digest(model)


def traced():
    model = Net().eval()
    torch.optim.SGD(model.parameters(), lr=0.1)
    print(torch.fx.symbolic_trace(model).code)
    print(torch.jit.script(model).code)
    print(torch.jit.trace(model, torch.ones(1, 8)).graph)


def saves(folder):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(DataLoader(Noisy(), 8)):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if i % 4 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                       os.path.join(folder, "%d.pt" % i))
    torch.save(model, os.path.join(folder, "whole.pt"))


def raises(workers="0"):
    train(DataLoader(Noisy(bad=13), 8, num_workers=int(workers)))


def raises_alone():
    def deep():
        return {}["no such key"]

    seed()
    deep()


def looks(_=""):
    """What a program may look at is as it was."""
    import inspect
    import pickle

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for f in (torch.optim.SGD.step, torch.optim.SGD, torch.optim.Optimizer.zero_grad, Net.__call__,
              torch.autograd.backward, torch.save, DataLoader.__iter__, model.forward,
              torch.nn.Module.named_parameters, queue.Queue.get):
        print(f.__name__ if hasattr(f, "__name__") else f, inspect.signature(f), f.__module__,
              f.__qualname__ if hasattr(f, "__qualname__") else "", f.__doc__ and len(f.__doc__))
    print(pickle.dumps(model) == pickle.dumps(pickle.loads(pickle.dumps(model))))
    print(sorted(vars(model)), sorted(vars(optimizer)), sorted(optimizer.__dict__))
    print(hashlib.sha256(pickle.dumps(Noisy())).hexdigest(), repr(DataLoader(Noisy()).dataset)[:25])
    print(isinstance(iter(DataLoader(Noisy())), torch.utils.data.dataloader._BaseDataLoaderIter))
    print(sys.path, "flatout" in sys.modules, torch.__spec__.loader.__class__.__name__,
          "exec_module" in vars(torch.__spec__.loader))


def ranks():
    import torch.distributed as dist
    import torch.multiprocessing as mp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    mp.spawn(_rank, (store.port,), nprocs=2)


def _rank(rank, port):
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    seed()
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Noisy(32), 8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        total = torch.ones(1)
        dist.all_reduce(total)
    # What still holds the group ends it after its threads, at the interpreter's end: PyTorch then aborts now and then.
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    seed()
    globals()[sys.argv[1]](*sys.argv[2:])

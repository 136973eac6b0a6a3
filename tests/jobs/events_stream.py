"""Physics events: the worker hands over big batches as nested Python lists, pickled through the pipe.

Making a sample is cheap; pickling in the worker and unpickling in the training process are not.
--fixed hands over one tensor in shared memory.
"""

import random

import torch
from torch.utils.data import DataLoader, IterableDataset

import kit

HITS = 600


def as_lists(events):
    return {"hits": [e["hits"] for e in events], "energy": [e["energy"] for e in events]}


def as_tensors(events):
    return {"hits": torch.stack([e["array"] for e in events]),
            "energy": torch.tensor([e["energy"] for e in events])}


class Events(IterableDataset):
    def __init__(self):
        r = random.Random(2)
        self.pool = []
        for _ in range(100):
            hits = [(r.random(), r.random(), r.random(), r.randrange(1 << 30)) for _ in range(HITS)]
            self.pool.append({"hits": hits, "array": torch.tensor(hits), "energy": r.random()})

    def __iter__(self):
        k = 0
        while True:
            yield self.pool[k % 100]
            k += 1


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = DataLoader(Events(), batch_size=48, num_workers=1,
                        collate_fn=as_tensors if opts.fixed else as_lists)  # CAUSE
    meter = kit.Meter(opts)
    for batch in loader:  # CAUSE
        hits = batch["hits"]
        if not torch.is_tensor(hits):
            hits = torch.tensor([[h[:] for h in hits[0][:HITS]]])
        energy = torch.as_tensor(batch["energy"])
        predicted = net(hits[:1] / 2.0**30).mean(dim=(1, 2))
        loss = (predicted - energy[:1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()

"""A rate limiter in the data iterator lets at most 25 batches a second through.

--fixed has no limiter.
"""

import time

import torch

import kit


class RateLimit:
    def __init__(self, source, per_second):
        self.source, self.gap, self.last = source, 1.0 / per_second, 0.0

    def __iter__(self):
        for item in self.source:
            rest = self.last + self.gap - time.monotonic()
            if rest > 0:
                time.sleep(rest)  # CAUSE
            self.last = time.monotonic()
            yield item


def samples():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4096, 64, generator=generator)
    while True:
        yield base[torch.randint(0, 4096, (64,), generator=generator)]


opts = kit.options()
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024),
                              torch.nn.ReLU(), torch.nn.Linear(1024, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
source = samples() if opts.fixed else RateLimit(samples(), 25)
meter = kit.Meter(opts)
for batch in source:  # CAUSE
    loss = torch.nn.functional.huber_loss(network(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if meter.step():
        break
meter.write()

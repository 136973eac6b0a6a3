"""Four threads run scripted functions over many small tensors beside each other; all share one heap arena.

The environment (MALLOC_ARENA_MAX=1 and a low trim threshold, settings people copy to save memory) makes
them wait for each other in malloc and free. --fixed runs without those settings (the harness leaves it away).
"""

import threading
from typing import List

import torch

import kit


@torch.jit.script
def churn(rounds: int, width: int) -> torch.Tensor:
    total = torch.zeros(width)
    for i in range(rounds):
        parts: List[torch.Tensor] = []
        for k in range(24):
            parts.append(torch.empty([width * (8 + k)]))
        total = total + float(len(parts))
    return total


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = torch.nn.Linear(512, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = kit.Meter(opts)
    churn(1, 512)
    results = [torch.zeros(512)] * 4

    def part(k):
        results[k] = churn(120, 512)  # CAUSE

    while not meter.over:
        threads = [threading.Thread(target=part, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # CAUSE
        loss = model(torch.stack(results)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
    meter.write()


if __name__ == "__main__":
    main()

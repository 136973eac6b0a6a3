"""The job that bench/overhead measures: steps of a length chosen by --rounds, with loader workers or none.

Writes every step's time, its own CPU seconds and its workers' to --times. Knows nothing of any tool;
with --traceml it calls TraceML's own two functions, as that tool asks of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self) -> None:
        self.base = torch.rand(256, 64)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.base[i % 256]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=8, help="forward passes through the middle layer per step")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--traceml", action="store_true")
    opts = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    first, middle, last = nn.Linear(64, opts.width), nn.Linear(opts.width, opts.width), nn.Linear(opts.width, 1)
    model = nn.ModuleList([first, middle, last])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    around = contextlib.nullcontext
    if opts.traceml:
        import traceml_ai as traceml

        traceml.init(mode="auto")
        around = lambda: traceml.trace_step(model)  # noqa: E731
    loader = DataLoader(Waves(), batch_size=opts.batch, num_workers=opts.workers,
                        prefetch_factor=4 if opts.workers else None)
    begins, times, batches = [], [], iter(loader)
    for _ in range(opts.steps + 20):
        begin = time.monotonic_ns()
        with around():
            x = torch.relu(first(next(batches)))
            for _ in range(opts.rounds):
                x = torch.relu(middle(x))
            loss = last(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        times.append(time.monotonic_ns() - begin)
        begins.append(begin)
    del batches  # the workers end here, and are counted below
    usage = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open(opts.times, "w") as file:
        json.dump({"begin_ns": begins[20:], "step_ns": times[20:], "cpu_s": sum(u.ru_utime + u.ru_stime for u in usage),
                   "loss": loss.item()}, file)


if __name__ == "__main__":
    main()

"""What the agent's hooks cost a step of a torch loop: by its own counters, and by blocks with and without.

    FLATOUT_BIN=build/release/flatout python bench/agent/hook_cost.py [--cases 'short;long, 2 workers'] [--rounds 3]
    … --counters --builds build/release/flatout OTHER/build/release/flatout    the counters of builds, in turns

Each case is a job of its own under `flatout run`. In the first half of it all hooks are in place, and
its run.json says what the counters counted. In the second half blocks of steps with the hooks and
blocks with the functions that they stand for alternate, and the CPU time of the training thread is
compared: that also holds what no counter can see, such as the cache lines that hooks push out. With
`--counters` there is no second half.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {  # name: (width, layers, batch, workers)
    "short": (64, 2, 16, 0),
    "short, 2 workers": (64, 2, 16, 2),
    "long": (512, 6, 64, 0),
    "long, 2 workers": (512, 6, 64, 2),
}


def without_us(hook):
    """The job's own function; None where there is no hook."""
    if not getattr(hook, "_flatout", False):
        return None
    while getattr(hook, "_flatout", False):
        hook = hook.__wrapped__
    return hook


def job(case: str, seconds: float, counters: bool, out: str) -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    width, layers, batch, workers = CASES[case]
    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Rows(Dataset):
        def __init__(self) -> None:
            self.base = torch.rand(256, width)

        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, i: int) -> torch.Tensor:
            return self.base[i % 256]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = iter(DataLoader(Rows(), batch_size=batch, num_workers=workers))

    def steps(until_ns: int | None = None, count: int = 1 << 60) -> int:
        done = 0
        while done < count and (until_ns is None or time.monotonic_ns() < until_ns):
            x = next(batches)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            done += 1
        return done

    iterator = next(cls for cls in type(batches).__mro__ if "__next__" in vars(cls))
    places = [(torch.autograd, "backward"), (torch.optim.Optimizer, "zero_grad"), (torch.optim.SGD, "step"),
              (Net, "__call__"), (iterator, "__next__")]
    done = steps(until_ns=time.monotonic_ns() + int(seconds * 1e9))
    if counters:
        Path(out).write_text(json.dumps({"steps": done}))
        return
    hooks = [getattr(owner, name) for owner, name in places]
    bare = [without_us(hook) for hook in hooks]
    result = {"steps": done}
    fetcher = getattr(batches, "_dataset_fetcher", None)
    swaps = [(owner, name, hook, plain) for (owner, name), hook, plain in zip(places, hooks, bare)]
    if fetcher is not None and all(bare):
        parts = {"fetch": type(fetcher).fetch.__get__(fetcher), "dataset": batches._dataset,
                 "collate_fn": batches._collate_fn}
        swaps += [(fetcher, n, getattr(fetcher, n), plain) for n, plain in parts.items()]
    if all(bare):
        a_block = max(4, int(done / seconds * 0.1))
        with_hooks, without, hooked = [], [], done
        until = time.monotonic_ns() + int(2 * seconds * 1e9)
        while time.monotonic_ns() < until:
            for column, spent in ((2, with_hooks), (3, without)):
                for swap in swaps:
                    setattr(swap[0], swap[1], swap[column])
                hooked += (2 + a_block) * (column == 2)
                steps(count=2)
                times = []
                for _ in range(a_block):
                    begin = time.thread_time_ns()
                    steps(count=1)
                    times.append(time.thread_time_ns() - begin)
                spent.append(statistics.median(times) / 1e3)
        pairs = [a - b for a, b in zip(with_hooks, without)]
        result.update(steps=hooked, step_us=statistics.median(without), difference_us=statistics.median(pairs),
                      quartiles=statistics.quantiles(pairs), blocks=len(pairs))
        for swap in swaps:
            setattr(swap[0], swap[1], swap[2])
    Path(out).write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job")
    parser.add_argument("--out")
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--counters", action="store_true", help="no blocks without hooks")
    parser.add_argument("--builds", nargs="*", default=[os.environ.get("FLATOUT_BIN", "flatout")], help="to take in turns")
    opts = parser.parse_args()
    if opts.job:
        job(opts.job, opts.seconds, opts.counters, opts.out)
        return
    print("case; step us (thread CPU); hooks a step; counted us a step; longest ms; with - without us a step (quartiles)")
    for case in opts.cases.split(";"):
        for flatout in opts.builds * opts.rounds:
            with tempfile.TemporaryDirectory() as folder:
                out = folder + "/result.json"
                subprocess.run([flatout, "run", "--quiet", "--out", folder + "/run", "--", sys.executable, __file__,
                                "--job", case, "--seconds", str(opts.seconds), "--out", out, *["--counters"] * opts.counters], check=True)
                result = json.loads(Path(out).read_text())
                agents = json.loads(Path(folder + "/run/run.json").read_text())["self"]["agents"]
                training = agents[0]  # the first that said Hello
                if len(opts.builds) > 1:
                    print(flatout, end=": ")
                show(case, result, training, [a for a in agents if a is not training])


def show(case: str, result: dict, training: dict, workers: list[dict]) -> None:
    steps = result["steps"]
    low, _, high = result.get("quartiles", (0, 0, 0))
    print("%s; %.0f; %.1f; %.2f; %.3f; %.2f (%.2f to %.2f, %d pairs)" % (
        case, result.get("step_us", 0), training["hooks"] / steps, training["time_ns"] / steps / 1e3,
        training["longest_ns"] / 1e6, result.get("difference_us", 0), low, high, result.get("blocks", 0)), flush=True)
    for worker in workers:
        if worker["hooks"]:
            print("  worker: %d hooks of %.2f us, longest %.3f ms" % (
                worker["hooks"], worker["time_ns"] / worker["hooks"] / 1e3, worker["longest_ns"] / 1e6))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A training step of ResNet-18 on the CPU, with and without flatout.nn.fuse: two copies of one model, step by step in turns.

    FLATOUT_NN_LIBRARY=build/release/libflatout_nn.so build/venv/bin/python bench/nn/resnet18.py [--batch 16] [--size 224]

Both see the same batches; the largest difference of their losses is printed, too.
"""

import argparse
import copy
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/e2e")]
from flatout.nn import fuse  # noqa: E402
from networks import ResNet18  # noqa: E402


class Trained:
    def __init__(self, model, clock):
        self.model, self.clock = model, clock
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
        self.seconds, self.losses = [], []

    def step(self, x, labels):
        begin = self.clock()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(x), labels)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(self.clock() - begin)
        self.losses.append(float(loss.detach()))


def fusable_share(step):
    """The share of a step's time that batch norm, additions and ReLUs take in PyTorch: no fusing can gain more."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            step()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    fusable = ("native_batch_norm", "threshold_backward", "add_", "clamp_min_", "relu")
    return sum(t for key, t in times.items() if key.removeprefix("aten::").startswith(fusable)) / sum(times.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="CPU time of the process instead of wall time: for a loaded machine, 1 thread")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = ResNet18().to(memory_format=layout)
    plain, fused = Trained(model, clock), Trained(fuse(copy.deepcopy(model)).model, clock)
    for i in range(options.steps):
        x = torch.randn(options.batch, 3, options.size, options.size).contiguous(memory_format=layout)
        labels = torch.randint(0, 1000, (options.batch,))
        for trained in (plain, fused) if i % 2 == 0 else (fused, plain):
            trained.step(x, labels)
    warm = 2
    ratios = sorted(a / b for a, b in zip(plain.seconds[warm:], fused.seconds[warm:]))
    print(f"batch {options.batch}, {options.size} x {options.size}, {'NHWC' if options.channels_last else 'NCHW'}, "
          f"{options.threads} threads, torch {torch.__version__}")
    print(f"plain {1e3 * statistics.median(plain.seconds[warm:]):.0f} ms, fused {1e3 * statistics.median(fused.seconds[warm:]):.0f} ms "
          f"a step; ratio {statistics.median(ratios):.3f} [{ratios[len(ratios) // 4]:.3f}, {ratios[len(ratios) * 3 // 4]:.3f}] "
          f"over {len(ratios)} pairs")
    print(f"batch norm, additions and ReLUs take {fusable_share(lambda: plain.step(x, labels)):.1%} of the plain step")
    print(f"losses differ by at most {max(abs(a - b) / abs(a) for a, b in zip(plain.losses, fused.losses)):.1e} (relative)")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Batch norm (+ add + ReLU) on the CPU: flatout.nn against PyTorch and oneDNN, all in each round, in changing order.

    FLATOUT_NN_LIBRARY=build/release/libflatout_nn.so build/venv/bin/python bench/nn/compare.py [--csv bench/results/nn.csv]

Rows are times of one call in ms, medians over the rounds; "ratio" is PyTorch's time over ours in the same round, its median and the 95 %
interval of that median (bootstrap); "cpu_ratio" the same of CPU seconds, which neighbours spoil less. PyTorch adds and rectifies in
place, as torchvision's networks do; "torch_new_tensors" does not. "copy_gb_per_s" is the fastest copy of as many bytes as the call must
move at least (each tensor read or written once), in the same rounds; "share" is the time of that copy over ours.

glibc gives freed results of this size back to the kernel, so that every call faults its pages in anew, which can take longer than the
call's own work. Here it keeps them, for all; `--trim` leaves it as it is by default.
"""

import argparse
import csv
import ctypes
import itertools
import os
import pathlib
import statistics
import sys
import time
from random import Random

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from flatout.nn import BatchNormAddReLU2d  # noqa: E402
from flatout.nn._library import library  # noqa: E402

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHAPES = {"25 MB": (32, 64, 56, 56), "6 MB": (32, 128, 20, 20), "6 MB, 14 x 14": (32, 256, 14, 14), "3 MB, 7 x 7": (32, 512, 7, 7)}


class Case:
    """The tensors of one shape, and the calls that are timed."""

    def __init__(self, shape, layout, dtype):
        torch.manual_seed(0)

        def make():
            return torch.randn(shape).to(dtype).contiguous(memory_format=FORMATS[layout])

        self.x, self.residual, self.dy = make(), make(), make()
        self.theirs = torch.nn.BatchNorm2d(shape[1])
        self.ours = BatchNormAddReLU2d(shape[1])
        self.ours_plain = BatchNormAddReLU2d(shape[1], relu=False)
        self.bytes = self.x.numel() * self.x.element_size()
        self.blocked = self.x.to_mkldnn() if dtype is torch.float32 and layout == "nchw" else None

    def step(self, norm, function):
        # Not backward(): it copies PyTorch's gradient of the residual, which is that of the sum, to have one for the .grad of each.
        inputs = (self.x.requires_grad_(), self.residual.requires_grad_(), norm.weight, norm.bias)
        torch.autograd.grad(function(*inputs[:2]), inputs, self.dy)

    def forward(self, function):
        with torch.no_grad():
            function(self.x)

    def calls(self):
        """Name -> (what it does, whose, the call, tensors moved at least)."""
        theirs = self.theirs
        out = {
            "forward": {"flatout": lambda: self.forward(self.ours_plain), "torch": lambda: self.forward(theirs)},
            "norm + add + ReLU, forward and backward": {
                "flatout": lambda: self.step(self.ours, self.ours),
                "torch": lambda: self.step(theirs, lambda x, r: functional.relu_(theirs(x).add_(r))),
                "torch, new tensors": lambda: self.step(theirs, lambda x, r: functional.relu(theirs(x) + r))},
        }
        if self.blocked is not None:
            arguments = (theirs.weight.detach(), theirs.bias.detach(), theirs.running_mean, theirs.running_var, True, 0.1, 1e-5)
            out["forward"]["oneDNN"] = lambda: torch.native_batch_norm(self.blocked, *arguments)
        return out


MOVED = {"forward": 2, "norm + add + ReLU, forward and backward": 7}


def keep_freed_memory():
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def seconds(call):
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def interval(ratios, draws=1000):
    """The median and the bounds between which 95 % of the medians of resampled rounds lie."""
    random = Random(0)
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[draws // 40], medians[-1 - draws // 40]


def copies(count):
    """Ways to read and write `count` bytes in all."""
    half = count // 2
    a, b = torch.randn(half // 4), torch.empty(half // 4)
    parts = torch.get_num_threads()
    libc = ctypes.CDLL(None)
    libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    out = {"copy_": lambda: b.copy_(a)}
    if parts == 1:
        out["memcpy"] = lambda: libc.memcpy(b.data_ptr(), a.data_ptr(), half)
    return out


def measure(name, shape, layout, dtype, threads, rounds, **columns):
    """A row for each of the case's calls."""
    torch.set_num_threads(threads)
    case = Case(shape, layout, dtype)
    for what, peers in case.calls().items():
        moved = MOVED[what] * case.bytes
        calls = list({**peers, **copies(moved)}.items())
        times = {peer: [] for peer, _ in calls}
        for i in range(rounds + 3):
            for peer, call in calls if i % 2 == 0 else calls[::-1]:
                taken = seconds(call)
                if i >= 3:
                    times[peer].append(taken)
        wall = {peer: statistics.median(t[0] for t in taken) for peer, taken in times.items()}
        ratio, low, high = interval([t[0] / f[0] for t, f in zip(times["torch"], times["flatout"])])
        best = min(wall[peer] for peer, _ in calls if peer not in peers)
        row = {"what": what, "size": name, "layout": layout, "dtype": str(dtype).split(".")[1], "threads": threads, **columns,
               **{f"{peer}_ms": round(1e3 * wall[peer], 3) for peer in ("flatout", "torch")},
               "torch_new_tensors_ms": round(1e3 * wall["torch, new tensors"], 3) if "torch, new tensors" in wall else "",
               "onednn_ms": round(1e3 * wall["oneDNN"], 3) if "oneDNN" in wall else "",
               "ratio": round(ratio, 2), "ratio_low": round(low, 2), "ratio_high": round(high, 2),
               "cpu_ratio": round(statistics.median(t[1] / f[1] for t, f in zip(times["torch"], times["flatout"])), 2),
               "copy_gb_per_s": round(moved / best / 1e9, 1), "share": round(best / wall["flatout"], 2),
               "torch_share": round(best / wall["torch"], 2), "load": round(os.getloadavg()[0], 1)}
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--runs", type=int, default=1, help="everything so many times, in new tensors")
    parser.add_argument("--csv")
    parser.add_argument("--sizes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--types", nargs="*", default=["float32"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--trim", action="store_true", help="leave glibc's malloc as it is")
    options = parser.parse_args()
    if not options.trim:
        keep_freed_memory()
    malloc = "trims" if options.trim else "keeps"
    print(f"torch {torch.__version__}, kernels: {library().flatout_nn_isa().decode()}")
    with open(options.csv or os.devnull, "w", newline="") as file:
        writer = None
        for run, threads, dtype, name, layout in itertools.product(range(options.runs), options.threads, options.types, options.sizes, FORMATS):
            for row in measure(name, SHAPES[name], layout, getattr(torch, dtype), threads, options.rounds, malloc=malloc, run=run):
                if writer is None:
                    writer = csv.DictWriter(file, row)
                    writer.writeheader()
                writer.writerow(row)
                file.flush()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Batch norm (+ add + ReLU) on the CPU: flatout.nn against PyTorch and oneDNN, all in each round, one after the other.

    FLATOUT_NN_LIBRARY=build/release/libflatout_nn.so build/venv/bin/python bench/nn/compare.py [--csv bench/results/nn.csv]

Rows are times of one call in ms, medians over the rounds; "share" is the least traffic (each tensor read or written once) over the
time, in units of the machine's bandwidth: the fastest copy of as many bytes, measured in the same rounds. "ratio" is PyTorch's time
over ours in the same round, its median and its quartiles. On a loaded machine `--cpu --threads 1` counts CPU time.

glibc gives freed results of this size back to the kernel, so that every call faults its pages in anew, which can take longer than the
call's own work. Here it keeps them, for all; `--trim` leaves it as it is by default.
"""

import argparse
import csv
import ctypes
import pathlib
import statistics
import sys
import time

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

    def step(self, function):
        self.x.grad = self.residual.grad = None
        function(self.x.requires_grad_(), self.residual.requires_grad_()).backward(self.dy)

    def forward(self, function):
        with torch.no_grad():
            function(self.x)

    def calls(self):
        """Name -> (what it does, whose, the call, tensors moved at least)."""
        theirs = self.theirs
        out = {
            "forward": {"flatout": lambda: self.forward(self.ours_plain), "torch": lambda: self.forward(theirs)},
            "norm + add + ReLU, forward and backward": {
                "flatout": lambda: self.step(self.ours), "torch": lambda: self.step(lambda x, r: functional.relu(theirs(x) + r))},
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


def seconds(call, clock):
    begin = clock()
    call()
    return clock() - begin


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


def measure(name, shape, layout, dtype, threads, rounds, clock, rows):
    torch.set_num_threads(threads)
    case = Case(shape, layout, dtype)
    for what, peers in case.calls().items():
        moved = MOVED[what] * case.bytes
        calls = {**peers, **copies(moved)}
        times = {peer: [] for peer in calls}
        for _ in range(3):
            for call in calls.values():
                call()
        for _ in range(rounds):
            for peer, call in calls.items():
                times[peer].append(seconds(call, clock))
        median = {peer: statistics.median(values) for peer, values in times.items()}
        ratios = sorted(t / f for t, f in zip(times["torch"], times["flatout"]))
        best = min(median[peer] for peer in calls if peer not in peers)
        row = {"what": what, "size": name, "layout": layout, "dtype": str(dtype).split(".")[1], "threads": threads,
               **{f"{peer}_ms": round(1e3 * median[peer], 3) for peer in ("flatout", "torch")},
               "onednn_ms": round(1e3 * median["oneDNN"], 3) if "oneDNN" in median else "",
               "ratio": round(statistics.median(ratios), 2), "ratio_low": round(ratios[len(ratios) // 4], 2),
               "ratio_high": round(ratios[len(ratios) * 3 // 4], 2), "copy_gb_per_s": round(moved / best / 1e9, 1),
               "share": round(best / median["flatout"], 2), "torch_share": round(best / median["torch"], 2)}
        rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--csv")
    parser.add_argument("--sizes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--types", nargs="*", default=["float32"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--cpu", action="store_true", help="CPU time of the process instead of wall time: for a loaded machine, 1 thread")
    parser.add_argument("--trim", action="store_true", help="leave glibc's malloc as it is")
    options = parser.parse_args()
    if not options.trim:
        keep_freed_memory()
    clock = time.process_time if options.cpu else time.perf_counter
    print(f"torch {torch.__version__}, kernels: {library().flatout_nn_isa().decode()}, malloc {'trims' if options.trim else 'keeps'}")
    rows = []
    for threads in options.threads:
        for dtype in options.types:
            for name in options.sizes:
                for layout in FORMATS:
                    measure(name, SHAPES[name], layout, getattr(torch, dtype), threads, options.rounds, clock, rows)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

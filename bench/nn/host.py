#!/usr/bin/env python3
"""What a call of batch norm + add + ReLU costs the host: flatout.nn and PyTorch's three calls, in turns, on a tensor so small that nothing else counts.

    FLATOUT_NN_LIBRARY=build/release/libflatout_nn.so build/venv/bin/python bench/nn/host.py

Microseconds of one thread, forward and backward together and forward alone: the fastest of nine rounds.
"""

import argparse
import pathlib
import sys
import time

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from flatout.nn import BatchNormAddReLU2d  # noqa: E402

CALLS, ROUNDS = 1000, 9


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    ours, theirs = BatchNormAddReLU2d(64), torch.nn.BatchNorm2d(64)
    forward = {"flatout": lambda x, r: ours(x, r), "torch": lambda x, r: functional.relu_(theirs(x).add_(r))}
    weights = {"flatout": (ours.weight, ours.bias), "torch": (theirs.weight, theirs.bias)}
    for layout in (torch.contiguous_format, torch.channels_last):
        x, r, dy = (torch.randn(2, 64, 4, 4).contiguous(memory_format=layout) for _ in range(3))
        x.requires_grad_(), r.requires_grad_()
        least = {}
        for _ in range(ROUNDS):
            for name, call in forward.items():
                for way, once in (("forward", lambda: call(x, r)), ("both", lambda: torch.autograd.grad(call(x, r), (x, r, *weights[name]), dy))):
                    begun = time.perf_counter()
                    for _ in range(CALLS):
                        once()
                    took = 1e6 * (time.perf_counter() - begun) / CALLS
                    least[name, way] = min(took, least.get((name, way), took))
        print(str(layout).split(".")[1], "  ".join(f"{name} {way} {us:.1f} us" for (name, way), us in least.items()),
              f"ratio {least['flatout', 'both'] / least['torch', 'both']:.2f}")


if __name__ == "__main__":
    main()

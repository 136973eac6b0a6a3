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
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from flatout.nn import fuse  # noqa: E402


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """arXiv 1512.03385, table 1."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.Sequential(*(nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
                                      for i, (a, b) in enumerate(zip(widths, widths[1:]))))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


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
    print(f"losses differ by at most {max(abs(a - b) / abs(a) for a, b in zip(plain.losses, fused.losses)):.1e} (relative)")


if __name__ == "__main__":
    main()

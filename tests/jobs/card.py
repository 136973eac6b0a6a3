"""A ResNet-50 or a transformer trains on a card, from batches that lie in page-locked memory; eager or compiled.

Prints one line of JSON: median step in ms, steps. --profile FILE has torch.profiler record the last third of the steps.
Without a card it says so and ends with exit code 77; --device cpu is there to try the script itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        straight = stride == 1 and inside == 4 * width
        self.side = nn.Identity() if straight else nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return functional.relu(self.main(x) + self.side(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inside, width, stride if block == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Transformer(nn.Module):
    def __init__(self, words: int = 8192, width: int = 512, layers: int = 6):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True), layers)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x))).mean(1)


def batches(opts: argparse.Namespace) -> list[tuple[torch.Tensor, torch.Tensor]]:
    out = []
    for _ in range(4):
        if opts.model == "resnet50":
            pair = torch.randn(opts.batch, 3, 224, 224), torch.randint(1000, (opts.batch,))
        else:
            pair = torch.randint(8192, (opts.batch, 256)), torch.randint(8192, (opts.batch,))
        out.append(pair if opts.device == "cpu" else tuple(t.pin_memory() for t in pair))
    return out


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("resnet50", "transformer"), default="resnet50")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--profile", help="write torch.profiler's trace of the last third there")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    opts = parser.parse_args()
    if opts.device == "cuda" and not torch.cuda.is_available():
        print("no card that PyTorch can use", file=sys.stderr)
        return 77
    torch.manual_seed(0)
    model = (resnet50() if opts.model == "resnet50" else Transformer()).to(opts.device)
    run = torch.compile(model) if opts.compile else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ready = batches(opts)
    profiler = torch.profiler.profile() if opts.profile else None
    lengths: list[float] = []
    with contextlib.ExitStack() as end:
        for step in range(opts.steps):
            if profiler is not None and step == opts.steps - opts.steps // 3:
                end.enter_context(profiler)
            begun = time.perf_counter()
            x, y = (t.to(opts.device, non_blocking=True) for t in ready[step % len(ready)])
            # In bfloat16 where the device is made for it: a CPU may take minutes.
            with torch.autocast(opts.device, torch.bfloat16, enabled=opts.device == "cuda"):
                loss = functional.cross_entropy(run(x).float(), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if profiler is not None:
                profiler.step()
            if step % 10 == 9:
                loss.item()  # as logging does
            lengths.append(time.perf_counter() - begun)
    if profiler is not None:
        profiler.export_chrome_trace(opts.profile)
    # Steps are queued: ten of them together take what the device takes.
    tens = [sum(lengths[i:i + 10]) / 10 for i in range(10, len(lengths) - 9, 10)] or lengths
    print(json.dumps({"median_ms": 1e3 * statistics.median(tens), "steps": len(lengths)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Batch norm (+ add + ReLU) on a CUDA device: flatout.nn against PyTorch, with cuDNN and without, all in each round, in changing order.

    FLATOUT_NN_LIBRARY=build/release/libflatout_nn.so FLATOUT_NN_CUDA_LIBRARY=build/release/libflatout_nn_cuda.so \\
        build/venv/bin/python bench/nn/card.py [--csv OUT.csv] [--compile] [--resnet]

Rows are times on the device (CUDA events) of one call in us, medians over the rounds; "ratio" is the best of PyTorch's eager times over
ours. PyTorch adds and rectifies in place, as torchvision's networks do. "share" is the time of a copy of as many bytes as the call must move
at least (each tensor read or written once) over ours, "peak_share" the same by the bandwidth that the device's clock and bus width give.
Each call finds another set of tensors than the one before, so that none comes from the device's cache. `--compile` adds what torch.compile
makes of PyTorch's. `--resnet`: a step of ResNet-50 (torchvision), with and without flatout.nn.fuse.

The host's part is not in it: calls are queued while the device is busy. It is in the steps of `--resnet`. Exit code 77 where there is no device or no kernel for it.
"""

import argparse
import copy
import csv
import pathlib
import statistics
import sys

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from flatout.nn import BatchNormAddReLU2d, _ops, fuse  # noqa: E402

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHAPES = {"float32": {"103 MB": (32, 256, 56, 56), "51 MB": (64, 64, 56, 56), "26 MB": (32, 512, 20, 20), "13 MB": (32, 2048, 7, 7)},
          "bfloat16": {"103 MB": (64, 256, 56, 56), "51 MB": (64, 512, 28, 28), "26 MB": (64, 1024, 14, 14), "13 MB": (64, 2048, 7, 7)}}
SETS = 3
BUSY_CYCLES = 4_000_000  # some two milliseconds, in which the host queues a round


class Set:
    """The tensors of one call."""

    def __init__(self, shape, layout, dtype):
        def make():
            return torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=FORMATS[layout])

        self.x, self.residual, self.dy = make().requires_grad_(), make().requires_grad_(), make()


def norms(channels):
    theirs, ours = torch.nn.BatchNorm2d(channels).cuda(), BatchNormAddReLU2d(channels).cuda()
    return theirs, ours, BatchNormAddReLU2d(channels, relu=False).cuda()


def calls(shape, with_compile):
    """What is timed -> (tensors moved at least forward, backward, {whose: function(x, residual), its norm, cuDNN})."""
    theirs, ours, plain = norms(shape[1])

    def eager(x, r):
        return functional.relu_(theirs(x).add_(r))

    add_relu = {"flatout": (ours, ours, True), "torch": (eager, theirs, True), "torch_native": (eager, theirs, False)}
    alone = {"flatout": (lambda x, _: plain(x), plain, True), "torch": (lambda x, _: theirs(x), theirs, True),
             "torch_native": (lambda x, _: theirs(x), theirs, False)}
    if with_compile:
        compiled = torch.compile(lambda x, r: functional.relu(theirs(x) + r))
        add_relu["compile"] = (compiled, theirs, True)
    return {"norm": (2, 3, alone), "norm + add + ReLU": (3, 4, add_relu)}


class Timer:
    def __init__(self):
        self.spans = {}

    def span(self, key, call):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        out = call()
        end.record()
        self.spans.setdefault(key, []).append((begin, end))
        return out

    def medians(self, skip):
        torch.cuda.synchronize()
        return {key: statistics.median(1e3 * begin.elapsed_time(end) for begin, end in spans[skip:]) for key, spans in self.spans.items()}


def peak_bytes_per_us():
    """From the device's clock and bus width; None where PyTorch does not tell."""
    known = torch.cuda.get_device_properties(0)
    clock, width = getattr(known, "memory_clock_rate", 0), getattr(known, "memory_bus_width", 0)
    return 2 * clock * 1e3 * width / 8 / 1e6 if clock and width else None


def measure(size, shape, layout, dtype, rounds, with_compile):
    sets = [Set(shape, layout, dtype) for _ in range(SETS)]
    bytes_of = sets[0].x.numel() * sets[0].x.element_size()
    for what, (forward_moves, backward_moves, peers) in calls(shape, with_compile).items():
        timer, skip = Timer(), 3
        names = list(peers)
        for i in range(rounds + skip):
            if i < skip:
                torch.cuda.synchronize()
            torch.cuda._sleep(BUSY_CYCLES)
            for j, name in enumerate(names if i % 2 == 0 else names[::-1]):
                function, norm, cudnn = peers[name]
                s = sets[(i + j) % SETS]
                with torch.backends.cudnn.flags(enabled=cudnn):
                    y = timer.span((name, "forward"), lambda: function(s.x, s.residual))
                    inputs = [t for t in (s.x, s.residual if what != "norm" else None, norm.weight, norm.bias) if t is not None]
                    timer.span((name, "backward"), lambda: torch.autograd.grad(y, inputs, s.dy))
                del y
            other = sets[(i + 1) % SETS]
            with torch.no_grad():
                timer.span("copy", lambda: other.dy.copy_(sets[i % SETS].dy))
        took = timer.medians(skip)
        copied, peak = 2 * bytes_of / took["copy"], peak_bytes_per_us()
        for way, moves in (("forward", forward_moves), ("backward", backward_moves)):
            least = moves * bytes_of + (bytes_of / sets[0].x.element_size() / 8 if what != "norm" else 0)
            times = {name: took[name, way] for name in names}
            row = {"what": what, "way": way, "size": size, "shape": "x".join(map(str, shape)), "layout": layout,
                   "dtype": str(dtype).split(".")[1], **{f"{name}_us": round(t, 1) for name, t in times.items()},
                   "ratio": round(min(times["torch"], times["torch_native"]) / times["flatout"], 2),
                   "copy_gb_per_s": round(copied / 1e3), "share": round(least / copied / times["flatout"], 3),
                   "peak_share": round(least / peak / times["flatout"], 3) if peak else "",
                   "torch_share": round(least / copied / min(times["torch"], times["torch_native"]), 3)}
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            yield row


def resnet(batch, rounds):
    """Times of a training step, ms, in turns: eager and fused, bfloat16 by autocast."""
    import torchvision

    torch.manual_seed(0)
    for layout in FORMATS:
        model = torchvision.models.resnet50().cuda().to(memory_format=FORMATS[layout])
        models = {"eager": model, "fused": fuse(copy.deepcopy(model)).model}
        optimizers = {name: torch.optim.SGD(m.parameters(), 0.01, 0.9) for name, m in models.items()}
        x = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=FORMATS[layout])
        labels = torch.arange(batch, device="cuda")
        timer, losses = Timer(), {name: [] for name in models}

        def step(name):
            optimizers[name].zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = functional.cross_entropy(models[name](x), labels)
            loss.backward()
            optimizers[name].step()
            return loss.detach()

        for i in range(rounds + 3):
            for name in models if i % 2 == 0 else reversed(models):
                torch.cuda.synchronize()  # else one's host works while the device is at the other's
                losses[name].append(timer.span(name, lambda: step(name)))
        took = timer.medians(3)
        apart = max(abs(float(a) - float(b)) for a, b in zip(*losses.values()))
        print(f"ResNet-50 batch {batch} {layout} bfloat16  eager {took['eager'] / 1e3:.2f} ms  fused {took['fused'] / 1e3:.2f} ms  "
              f"ratio {took['eager'] / took['fused']:.3f}  losses apart by {apart:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="the 103 MB rows alone")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--batch", type=int, default=64, help="of --resnet")
    parser.add_argument("--csv")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not _ops.supports(torch.device("cuda", 0), torch.float32):
        print("there is no CUDA device that flatout.nn runs on", file=sys.stderr)
        return 77
    print(torch.cuda.get_device_name(0), "PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), flush=True)
    rows = []
    for dtype, shapes in SHAPES.items():
        for size, shape in shapes.items():
            if options.quick and size != "103 MB":
                continue
            for layout in FORMATS:
                rows += measure(size, shape, layout, getattr(torch, dtype), options.rounds, options.compile)
    if options.csv:
        with open(options.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys(), extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    if options.resnet:
        resnet(options.batch, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

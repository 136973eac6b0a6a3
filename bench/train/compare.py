#!/usr/bin/env python3
"""A training step of flatout train beside PyTorch's of the same model, in alternating rounds.

    build/venv/bin/python bench/train/compare.py [--flatout build/release/flatout] [--rounds 5] [--csv bench/results/train.csv]

Ours reads generated files of MNIST's and CIFAR-10's kind and augments in a loader thread, which is part of its figures; PyTorch is
given one ready batch again and again. CPU seconds of the whole process over the steps: the machines are shared.
"""

import argparse
import csv
import json
import os
import pathlib
import platform
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = [("lenet", 64, 150), ("resnet20", 32, 8)]


def torch_steps(model_name, batch, steps, threads):
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import torch
    from networks import LeNet, ResNet20

    torch.set_num_threads(threads)
    model = LeNet() if model_name == "lenet" else ResNet20()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    x = torch.randn(batch, *((1, 28, 28) if model_name == "lenet" else (3, 32, 32)))
    y = torch.randint(10, (batch,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(steps):
        step()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"cpu_ms": cpu / steps * 1000, "wall_ms": wall / steps * 1000, "version": torch.__version__}))


def write_data(folder):
    """Random pictures, and no test set: nothing is validated."""
    random = os.urandom
    count = 2048
    (folder / "lenet").mkdir()
    (folder / "lenet/train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, 28, 28) + random(count * 28 * 28))
    labels = bytes(i % 10 for i in range(count))
    (folder / "lenet/train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
    (folder / "resnet20").mkdir()
    (folder / "resnet20/data_batch_1.bin").write_bytes(b"".join(bytes([y]) + random(3072) for y in labels))


def ours(flatout, folder, model_name, batch, steps, threads):
    done = subprocess.run([flatout, "train", "--json", "--model", model_name, "--data", str(folder / model_name), "--batch", str(batch),
                           "--steps", str(steps), "--threads", str(threads), "--loaders", "1"], capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    return {"cpu_ms": out["cpu_seconds"] / out["steps"] * 1000, "wall_ms": out["seconds"] / out["steps"] * 1000}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flatout", default=str(ROOT / "build/release/flatout"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--csv")
    parser.add_argument("--torch", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        torch_steps(options.torch[0], *map(int, options.torch[1:]))
        return
    rows = []
    temporary = tempfile.TemporaryDirectory()
    folder = pathlib.Path(temporary.name)
    write_data(folder)
    for threads in map(int, options.threads.split(",")):
        for model_name, batch, steps in CASES:
            figures = {"flatout": [], "torch": []}
            for round_number in range(options.rounds):
                peer = subprocess.run([sys.executable, __file__, "--torch", model_name, str(batch), str(steps), str(threads)],
                                      capture_output=True, text=True, check=True)
                for who, one in (("torch", json.loads(peer.stdout)), ("flatout", ours(options.flatout, folder, model_name, batch, steps, threads))):
                    figures[who].append(one)
                    rows.append({"model": model_name, "batch": batch, "threads": threads, "round": round_number, "who": who,
                                 "cpu_ms_per_step": round(one["cpu_ms"], 3), "wall_ms_per_step": round(one["wall_ms"], 3),
                                 "load": round(os.getloadavg()[0], 1), "machine": platform.processor() or platform.machine()})
            cpu, wall = ({who: statistics.median(f[key] for f in of) for who, of in figures.items()} for key in ("cpu_ms", "wall_ms"))
            print(f"{model_name:9} batch {batch:3}, {threads} threads: CPU ms a step {cpu['flatout']:7.2f} to PyTorch's {cpu['torch']:7.2f}, "
                  f"ratio {cpu['flatout'] / cpu['torch']:.2f}; wall {wall['flatout']:7.2f} to {wall['torch']:7.2f}, "
                  f"samples/s {batch / wall['flatout'] * 1000:.0f} to {batch / wall['torch'] * 1000:.0f}")
            sys.stdout.flush()
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

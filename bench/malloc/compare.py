#!/usr/bin/env python3
"""libflatout_malloc.so beside glibc and every allocator found on the machine, in alternating rounds.

    python3 bench/malloc/compare.py --library build/release/libflatout_malloc.so [--rounds 5] [--only REGEX]
        [--peer NAME=PATH]... [--torch PYTHON] [--sampling] [--csv bench/results/malloc.csv]

Each cell is the median of the rounds; `ratio` is ours to the best peer's, below 1 is a gain. CPU time throughout: the machines
are shared. Other counts (faults, peak) are medians too.
"""

import argparse
import csv
import glob
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PEERS = {  # name: what Debian and Ubuntu call the file
    "gperftools": "libtcmalloc_minimal.so.4", "jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2",
    "snmalloc": "libsnmallocshim.so", "rpmalloc": "librpmallocwrap.so",
}
CPU = [
    *(("pair", f"pair {n}", "ns") for n in (8, 16, 64, 256, 1024, 4096, 32768)),
    ("large pair", "pair 1048576", "ns"), ("large pair", "pair 67108864", "ns"),
    ("touched pair", "pair_touched 1048576", "ns"), ("touched pair", "pair_touched 67108864", "ns"),
    *(("batch", f"batch {row}", "ns") for row in ("16 10000 0", "64 10000 2", "64 1000000 2", "256 100000 1", "32768 1000 0")),
    ("batch", "mixed 1", "ns"), ("batch", "mixed 2", "ns"),
    *(("producer/consumer", f"xthread {n}", "ns") for n in (16, 64, 256, 32768)),
    ("training step", "trainstep 12 0 0", "ms"), ("training step", "trainstep 12 1 0", "ms"),
    ("other", "churn", "ns"), ("other", "calloc 4096", "ns"), ("other", "calloc 1048576", "ns"), ("other", "realloc", "ms"),
]
COUNTS = [  # once each: they do not vary with load
    ("slow steps", "trainstep 6 1 5", "ms"),
    *(("space", f"space {n}", "%") for n in (8, 16, 48, 200, 1000, 5000)), ("space", "start", "KiB"),
    ("give-back", "giveback 64 2 0", "%"), ("give-back", "giveback 64 2 1", "%"),
    ("give-back", "giveback 1048576 2 0", "%"), ("give-back", "giveback 1048576 2 1", "%"),
    *(("blow-up", f"blowup {a} {b} {ended}", "x") for a, b in ((64, 256), (4096, 3000), (1048576, 64)) for ended in (0, 1)),
]
TORCH = [("torch", f"torch {n} {steps}", "ms") for n, steps in (("elem", 5), ("unet", 15), ("tfvar", 12), ("resnet", 15), ("jpeg", 30))]


def find_peers(named):
    found = {"glibc": ""}
    for name, file in PEERS.items():
        at = [p for folder in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib") for p in glob.glob(f"{folder}/{file}")]
        if at:
            found[name] = at[0]
    found.update(peer.split("=", 1) for peer in named)
    return found


def run(program, python, workload, library, sampling=False):
    words = workload.split()
    command = [python, str(HERE / "torch_step.py"), *words[1:]] if words[0] == "torch" else [program, *words]
    env = dict(os.environ)
    env.pop("LD_PRELOAD", None)
    if library:
        env["LD_PRELOAD"] = library
    if sampling:
        env["FLATOUT_MALLOC_SAMPLE"] = str(512 << 10)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return {}
    return {k: float(v) for k, v in re.findall(r"(\w+)=([-\d.]+)", done.stdout)} if done.returncode == 0 else {}


def write_csv(path, results):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["machine", "workload", "unit", "allocator", "round", "what", "value"])
        for (row, name), values in results.items():
            for round_, value in enumerate(values):
                for what, number in (value or {"failed": 1}).items():
                    out.writerow([platform.machine(), row[1], row[2], name, round_ + 1, what, number])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/release/libflatout_malloc.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose group or name matches")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PATH of another allocator")
    parser.add_argument("--torch", default="", help="an interpreter with PyTorch")
    parser.add_argument("--sampling", action="store_true", help="ours with the heap profile's samples on, too")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()

    program = os.path.join(tempfile.mkdtemp(), "workloads")
    subprocess.run(["g++", "-O2", "-std=c++20", "-fno-builtin", "-pthread", str(HERE / "workloads.cpp"), "-o", program], check=True)
    allocators = {**find_peers(options.peer), "flatout": os.path.abspath(options.library)}
    if options.sampling:
        allocators["sampling"] = allocators["flatout"]
    wanted = re.compile(options.only)
    rows = [row for row in CPU + COUNTS + (TORCH if options.torch else []) if wanted.search(f"{row[0]} {row[1]}")]
    results = {}
    for round_ in range(options.rounds):
        for row in rows:
            if row in COUNTS and round_ > 0:
                continue
            order = list(allocators.items())
            order = order[round_ % len(order):] + order[:round_ % len(order)]
            for name, library in order:
                results.setdefault((row, name), []).append(run(program, options.torch, row[1], library, name == "sampling"))
            print(f"round {round_ + 1}: {row[1]}", file=sys.stderr)
        if options.csv:
            write_csv(options.csv, results)  # a long run that is cut off keeps its rounds

    names = list(allocators)
    print(f"\n| workload | unit | {' | '.join(names)} | ratio |\n|---|---|{'---|' * (len(names) + 1)}")
    ratios, sampling = {}, []
    for row in rows:
        kinds = sorted({k for name in names for v in results[row, name] for k in v if k != "held_mib"}, key=lambda k: (k != "value", k))
        for kind in kinds:
            cells = {n: statistics.median(v[kind] for v in results[row, n] if kind in v) for n in names
                     if any(kind in v for v in results[row, n])}
            best = min((v for n, v in cells.items() if n not in ("flatout", "sampling")), default=math.nan)
            ours = cells.get("flatout", math.nan)
            ratio = ours / best if best > 0 else math.nan
            if kind == "value" and row not in COUNTS:
                ratios.setdefault(row[0], []).append(ratio)
                if "sampling" in cells:
                    sampling.append(cells["sampling"] / ours)
            label = row[1] if kind == "value" else f"… {kind}"
            unit = row[2] if kind == "value" else ""
            print(f"| {label} | {unit} | {' | '.join(f'{cells[n]:.5g}' if n in cells else 'failed' for n in names)} | {ratio:.2f} |")
    for group, values in ratios.items():
        good = [v for v in values if v > 0]
        if good:
            print(f"\n{group}: {math.exp(sum(map(math.log, good)) / len(good)):.3f} of the best peer (geometric mean of {len(good)}), worst {max(good):.2f}")

    if sampling:
        print(f"\nsampling: {math.exp(sum(map(math.log, sampling)) / len(sampling)):.3f} of ours without, worst {max(sampling):.2f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The programs of mimalloc-bench under libflatout_malloc.so and its peers, in alternating rounds.

    python3 bench/malloc/suite.py SUITE [--rounds 5] [--only REGEX] [--peer NAME=PATH]... [--csv bench/results/malloc_suite.csv]

SUITE is a checkout of github.com/daanx/mimalloc-bench, built: cmake -S bench -B out/bench && cmake --build out/bench
(without sh6bench and sh8bench where their sources cannot be had). `gs`, `z3`, `ruby` and `redis` run where they are installed.
CPU seconds of a program and its children; where a program runs for a fixed time, CPU nanoseconds per operation. Peak
resident memory is that of the largest process. `ratio` is ours to the best peer's, below 1 is a gain.
"""

import argparse
import csv
import math
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from compare import find_peers

THREADS = 2


def programs(suite):
    """name: (command, file for standard input, pattern of the operations done in a fixed time)."""
    built, source, n = suite / "out" / "bench", suite / "bench", str(THREADS)
    rows = {
        "cfrac": ["cfrac", "17545186520507317056371138836327483792789528"],
        "espresso": ["espresso", str(source / "espresso" / "largest.espresso")],
        "barnes": ["barnes"],
        "alloc-test1": ["alloc-test", "1"],
        "alloc-testN": ["alloc-test", n],
        "larsonN": ["larson", "2", "8", "1000", "5000", "100", "4141", n],
        "larsonN-sized": ["larson-sized", "2", "8", "1000", "5000", "100", "4141", n],
        "xmalloc-testN": ["xmalloc-test", "-w", n, "-t", "2", "-s", "64"],
        "cache-thrash1": ["cache-thrash", "1", "1000", "1", "2000000", n],
        "cache-thrashN": ["cache-thrash", n, "1000", "1", "2000000", n],
        "cache-scratch1": ["cache-scratch", "1", "1000", "1", "2000000", n],
        "cache-scratchN": ["cache-scratch", n, "1000", "1", "2000000", n],
        "malloc-large": ["malloc-large"],
        "mleak10": ["mleak", "5"],
        "mleak100": ["mleak", "50"],
        "mstressN": ["mstress", n, "50", "25"],
        "rptestN": ["rptest", n, "0", "1", "2", "500", "1000", "100", "8", "16000"],
        "glibc-simple": ["glibc-simple"],
        "glibc-thread": ["glibc-thread", n],
    }
    operations = {"larsonN": r"Throughput = +(\d+)", "larsonN-sized": r"Throughput = +(\d+)", "xmalloc-testN": r"free/sec: ([\d.]+) M",
                  "glibc-thread": r"(\d+) iterations"}
    found = {}
    for name, (program, *arguments) in rows.items():
        standard_in = source / "barnes" / "input" if name == "barnes" else os.devnull
        found[name] = ([str(built / program), *arguments], standard_in, operations.get(name))
    others = {
        "gs": ("gs", ["-dBATCH", "-dNOPAUSE", "-q", "-sDEVICE=nullpage", "-r150", *map(str, sorted(suite.glob("*.pdf"))[:1])]),
        "z3": ("z3", ["-smt2", str(source / "z3" / "test1.smt2")]),
        "rbstress1": ("ruby", [str(source / "rbstress" / "stress_mem.rb"), "1"]),
        "compile": ("g++", ["-O2", "-w", "-c", str(source / "larson" / "larson.cpp"), "-o", os.devnull]),
    }
    for name, (program, arguments) in others.items():
        if shutil.which(program) and not (name == "gs" and not list(suite.glob("*.pdf"))):
            found[name] = ([shutil.which(program), *arguments], os.devnull, None)
    return found


def measured(measure, command, library, folder, **streams):
    """Starts `command`; `finish` gives its (CPU seconds, wall seconds, peak MiB), or nothing where it failed."""
    # The library is loaded by the program alone, not by what measures it.
    preload = ["env", f"LD_PRELOAD={library}"] if library else ["env"]
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.Popen([measure, "used", *preload, *command], env=env, cwd=folder, **streams)


def finish(child, folder):
    if child.wait() != 0:
        return None
    cpu, wall, peak_kib, status = (folder / "used").read_text(encoding="ascii").split()
    return (float(cpu), float(wall), float(peak_kib) / 1024) if status == "0" else None


def run(measure, command, standard_in, operations, library, folder):
    """CPU seconds, or nanoseconds an operation, and peak MiB; nothing where the program fails."""
    with open(standard_in, "rb") as given, open(folder / "said", "w+b") as said:
        used = finish(measured(measure, command, library, folder, stdin=given, stdout=said, stderr=subprocess.STDOUT), folder)
        if not used:
            return {}
        cpu, wall, peak = used
        if operations:
            said.seek(0)
            done = re.search(operations, said.read().decode(errors="replace"))
            if not done:
                return {}
            # glibc-thread counts what it did in all; the others give a rate.
            count = float(done[1]) * (1 if "iterations" in operations else wall) * (1e6 if operations.endswith(" M") else 1)
            cpu = cpu / count * 1e9
        return {"cpu": cpu, "peak_mib": peak}


def run_redis(measure, library, folder):
    """CPU seconds and peak MiB of a server that answers a fixed number of requests."""
    # One program under several names; Debian's redis-tools has it without a service that starts.
    (folder / "redis-server").symlink_to(shutil.which("redis-server") or shutil.which("redis-check-rdb"))
    socket = folder / "redis.sock"
    server = [str(folder / "redis-server"), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    child = measured(measure, server, library, folder, stdout=subprocess.DEVNULL)
    while not socket.exists() and child.poll() is None:
        time.sleep(0.05)
    client = ["redis-benchmark", "-s", str(socket), "-r", "1000000", "-n", "100000", "-q", "-P", "16"]
    for request in (["lpush", "a", "1", "2", "3", "4", "5"], ["lrange", "a", "1", "5"], ["set", "k__rand_int__", "0123456789" * 4]):
        subprocess.run([*client, *request], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["redis-cli", "-s", str(socket), "shutdown", "nosave"], check=False, stdout=subprocess.DEVNULL)
    used = finish(child, folder)
    return {"cpu": used[0], "peak_mib": used[2]} if used else {}


def write_csv(path, results):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["machine", "program", "allocator", "round", "what", "value"])
        for (row, name), values in results.items():
            for round_, value in enumerate(values):
                for what, number in (value or {"failed": 1}).items():
                    out.writerow([platform.machine(), row, name, round_ + 1, what, round(number, 4)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("--library", default="build/release/libflatout_malloc.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="programs whose name matches")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PATH of another allocator")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()

    suite = options.suite.resolve()
    if not (suite / "out" / "bench" / "cfrac").exists():
        sys.exit(f"suite.py: {suite} has no out/bench/cfrac: build mimalloc-bench there first (see --help)")
    allocators = {**find_peers(options.peer), "flatout": os.path.abspath(options.library)}
    rows = programs(suite)
    if shutil.which("redis-benchmark"):
        rows["redis"] = None
    rows = {name: row for name, row in rows.items() if re.search(options.only, name)}
    measure = os.path.join(tempfile.mkdtemp(), "measure")
    subprocess.run(["cc", "-O2", str(pathlib.Path(__file__).with_name("measure.c")), "-o", measure], check=True)
    results = {}
    for round_ in range(options.rounds):
        for name, row in rows.items():
            order = list(allocators.items())
            order = order[round_ % len(order):] + order[:round_ % len(order)]
            for allocator, library in order:
                with tempfile.TemporaryDirectory() as folder:
                    folder = pathlib.Path(folder)
                    got = run(measure, *row, library, folder) if row else run_redis(measure, library, folder)
                results.setdefault((name, allocator), []).append(got)
            print(f"round {round_ + 1}: {name}", file=sys.stderr)
        if options.csv:
            write_csv(options.csv, results)  # a long run that is cut off keeps its rounds

    peers = [name for name in allocators if name != "flatout"]
    for what in ("cpu", "peak_mib"):
        print(f"\n| {what} | {' | '.join(allocators)} | ratio |\n|---|{'---|' * (len(allocators) + 1)}")
        cells = {}
        for name in rows:
            for allocator in allocators:
                values = [v[what] for v in results[name, allocator] if what in v]
                cells[name, allocator] = statistics.median(values) if values else math.nan
            best = min((cells[name, p] for p in peers if cells[name, p] > 0), default=math.nan)
            shown = " | ".join(f"{cells[name, a]:.4g}" if cells[name, a] > 0 else "failed" for a in allocators)
            print(f"| {name} | {shown} | {cells[name, 'flatout'] / best:.2f} |")
        for peer in peers:
            ratios = [cells[name, "flatout"] / cells[name, peer] for name in rows if cells[name, "flatout"] > 0 and cells[name, peer] > 0]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"\n{what}: {mean:.3f} of {peer} (geometric mean of {len(ratios)}), worst {max(ratios):.2f}", end="")
        print()


if __name__ == "__main__":
    main()

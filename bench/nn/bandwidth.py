#!/usr/bin/env python3
"""Which share of the memory's bandwidth batch norm's kernels use: nn_bench's rows against plain copies and reads in the same run.

    build/venv/bin/python bench/nn/bandwidth.py build/release/src/nn/nn_bench [--csv bench/results/nn_bandwidth.csv]

nn_bench runs its benchmarks in a random order, again and again. GB/s are of the least traffic: each tensor is read or written once. The
yardstick is the fastest of a copy, a copy past the caches and a read of tensors of the same size, by as many threads; so that of 6 MB
is what the last-level cache gives.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess

YARDSTICKS = ("BM_Copy", "BM_StreamedCopy", "BM_Read")
TYPES = ("f32", "bf16", "f16")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nn_bench")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--filter", default="type:0", help="regular expression of benchmarks; default: f32 only")
    parser.add_argument("--cpu", action="store_true", help="per second of CPU time: for a loaded machine, rows of one thread")
    parser.add_argument("--csv")
    options = parser.parse_args()
    done = subprocess.run(
        [options.nn_bench, f"--benchmark_repetitions={options.repetitions}", "--benchmark_enable_random_interleaving=true",
         "--benchmark_min_time=0.02", "--benchmark_format=json", f"--benchmark_filter={'|'.join(YARDSTICKS)}|{options.filter}"],
        stdout=subprocess.PIPE, text=True, check=True)
    speeds = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run["run_type"] == "iteration":
            name, *arguments = run["run_name"].split("/")
            values = {key: int(value) for key, value in (a.split(":") for a in arguments if a[-1].isdigit())}
            key = (name, values["MB"], values["NHWC"], values["type"], values["threads"])
            speed = run["bytes_per_second"] / 1e9 * (run["real_time"] / run["cpu_time"] if options.cpu else 1)
            speeds.setdefault(key, []).append(speed)
    median = {key: statistics.median(values) for key, values in speeds.items()}
    rows = []
    for (name, size, nhwc, kind, threads), speed in sorted(median.items(), key=lambda item: item[0][1:] + item[0][:1]):
        if name in YARDSTICKS:
            continue
        copy, past, read = (median.get((y, size, 0, min(kind, 1), threads), 0.0) for y in YARDSTICKS)
        rows.append({"what": name[3:], "size": f"{size} MB" if kind == 0 else f"{size // 2} MB", "layout": "NHWC" if nhwc else "NCHW",
                     "type": TYPES[kind], "threads": threads, "gb_per_s": round(speed, 1), "copy": round(copy, 1),
                     "streamed_copy": round(past, 1), "read": round(read, 1), "share_of_copy": round(speed / max(copy, past), 2),
                     "share_of_best": round(speed / max(copy, past, read), 2), "clock": "cpu" if options.cpu else "wall", "load": round(os.getloadavg()[0], 1)})
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()))
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

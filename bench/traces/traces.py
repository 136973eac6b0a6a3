#!/usr/bin/env python3
"""Load and analyse one trace: flatout against HolisticTraceAnalysis, in turns, CPU seconds and peak memory of each process.

    FLATOUT_BIN=build/release/flatout python3 bench/traces/traces.py FILE [--hta PYTHON] [--rounds 5]

Flatout runs on one core, on all, and on one with the file gzipped. PYTHON is an interpreter of its own with HolisticTraceAnalysis installed. Each run is a process; start-up is part of it. HTA loads the
trace and runs what `flatout trace summary` answers: temporal, idle and kernel breakdown, overlap, queue length, launch statistics,
memory bandwidth.
"""

import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import time

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results" / "traces.csv"

HTA = """
import logging, sys, json, gzip
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
from hta.configs.config import logger
a = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2], include_last_profiler_step=True)
for name, arguments in (("get_temporal_breakdown", {"visualize": False}), ("get_idle_time_breakdown", {"visualize": False}),
                        ("get_comm_comp_overlap", {"visualize": False}), ("get_gpu_kernel_breakdown", {"visualize": False}),
                        ("get_queue_length_summary", {}), ("get_cuda_kernel_launch_stats", {"visualize": False}),
                        ("get_memory_bw_summary", {})):
    try:
        getattr(a, name)(**arguments)
    except Exception as error:
        print(name, repr(error)[:200], file=sys.stderr)
"""


def run(command: list[str], environment: dict[str, str] | None = None) -> dict[str, float]:
    begin = time.monotonic()
    with open(os.devnull, "w") as out:
        process = subprocess.Popen(command, stdout=out, env={**os.environ, **(environment or {})})
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{command[0]} failed with {status}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall, "rss_mb": usage.ru_maxrss / 1024}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--hta", help="interpreter with HolisticTraceAnalysis")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    flatout = os.environ.get("FLATOUT_BIN", "build/release/flatout")
    size = os.path.getsize(arguments.file)
    packed = os.path.join(tempfile.mkdtemp(), "trace.json.gz")
    with open(packed, "wb") as out:
        subprocess.run(["gzip", "-c", arguments.file], stdout=out, check=True)
    rows = []
    for number in range(arguments.rounds):
        summary = [flatout, "trace", "summary", "--json"]
        tools = [
            ("flatout, one core", ["taskset", "-c", "0", *summary, arguments.file], None),
            ("flatout", [*summary, arguments.file], None),
            ("flatout, one core, gz", ["taskset", "-c", "0", *summary, packed], None),
        ]
        if arguments.hta:
            folder = tempfile.mkdtemp()
            tools.append(("hta", [arguments.hta, "-c", HTA, os.path.abspath(arguments.file), folder], {"HTA_DISABLE_NS_ROUNDING": "1"}))
        for tool, command, environment in tools:
            row = {"file": os.path.basename(arguments.file), "bytes": size, "tool": tool, "round": number, "load": os.getloadavg()[0],
                   **run(command, environment)}
            rows.append(row)
            print(f"{tool:22} {row['cpu_s']:8.3f} s CPU {row['wall_s']:8.3f} s wall {row['rss_mb']:8.1f} MB", flush=True)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    best = {tool: {key: min(r[key] for r in rows if r["tool"] == tool) for key in ("cpu_s", "wall_s")} for tool in {r["tool"] for r in rows}}
    one = best["flatout, one core"]
    print(f"one core: {size / one['cpu_s'] / 1e9:.2f} GB/s of CPU time, all of it; gzipped {best['flatout, one core, gz']['cpu_s'] / one['cpu_s']:.2f} times that time")
    print(f"{len(os.sched_getaffinity(0))} cores: {one['wall_s'] / best['flatout']['wall_s']:.2f} times as fast")
    if "hta" in best:
        print(f"hta / flatout on one core: {best['hta']['cpu_s'] / one['cpu_s']:.0f} times the CPU time")
    return 0


if __name__ == "__main__":
    sys.exit(main())

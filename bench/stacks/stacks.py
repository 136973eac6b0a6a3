"""CPU time of one reading of a process's Python stacks: ours against py-spy --nonblocking.

    build/venv/bin/python bench/stacks/stacks.py --tool build/release/src/probe/stack_dump [--rounds 5] [--rate 100,1000]

One process, one busy Python thread with 8 frames, both readers at the same rate (Hz), one after the other in each round.
A reader's start-up is taken out: CPU of a long run minus CPU of a short one, over the readings between. The column
sleep_cpu_us is our loop without the readings: what waking up that often costs on this machine at that moment;
it is part of both readers' figures. Written to bench/results/stacks.csv.
"""

import argparse
import csv
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = """
def f(n):
    if n: return f(n - 1)
    x = 0
    while True:
        for i in range(1000): x += i
f(6)
"""


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def per_reading(command, rate, short=1, long=5):
    """command(seconds) -> argv. Microseconds of CPU for each reading."""
    cost = cpu_of(command(long)) - cpu_of(command(short))
    return cost / ((long - short) * rate) * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", default="100,1000")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    spy = str(pathlib.Path(sys.executable).parent / "py-spy")
    version = subprocess.run([spy, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    target = subprocess.Popen([args.python, "-c", SCRIPT])
    rows = []
    try:
        time.sleep(0.5)
        for rate in map(int, args.rate.split(",")):
            rows += rounds(args, spy, str(target.pid), rate)
    finally:
        target.kill()
        target.wait()
    out = ROOT / "bench" / "results" / "stacks.csv"
    with open(out, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["machine", "target", "peer", "hz", "flatout_cpu_us", "peer_cpu_us", "sleep_cpu_us", "load"])
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
        python = subprocess.run([args.python, "-V"], capture_output=True, text=True).stdout.strip()
        load = os.getloadavg()[0]
        for rate, a, b, c in rows:
            writer.writerow([machine, f"{python}, 1 thread, 8 frames", f"{version} --nonblocking", rate,
                             f"{a:.1f}", f"{b:.1f}", f"{c:.1f}", f"{load:.1f}"])


def rounds(args, spy, pid, rate):
    """[(rate, ours, py-spy's, the sleep's)], in microseconds of CPU for each reading."""
    ours = lambda s: [args.tool, pid, "--repeat", str(s * rate), "--interval-us", str(1000000 // rate)]
    theirs = lambda s: [spy, "record", "--nonblocking", "--pid", pid, "--rate", str(rate), "--duration", str(s),
                        "--format", "raw", "--output", os.devnull]
    sleep = lambda s: ours(s) + ["--only-sleep"]
    rows = []
    for _ in range(args.rounds):
        a, b, c = per_reading(ours, rate), per_reading(theirs, rate), per_reading(sleep, rate)
        rows.append((rate, a, b, c))
        print(f"{rate} Hz: flatout {a:.1f} us, py-spy {b:.1f} us, ratio {a / b:.3f}; sleep alone {c:.1f} us", flush=True)
    a, b, c = (statistics.median(column) for column in list(zip(*rows))[1:])
    print(f"{rate} Hz: median ratio {a / b:.3f}; without the sleep {(a - c) / (b - c):.3f}")
    return rows


if __name__ == "__main__":
    main()

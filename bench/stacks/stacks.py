"""CPU time of one reading of a process's Python stacks: ours against py-spy --nonblocking.

    build/venv/bin/python bench/stacks/stacks.py --tool build/release/src/probe/stack_dump [--rounds 5]

One process, one busy Python thread with 8 frames, both readers at 100 Hz, one after the other in each round.
A reader's start-up is taken out: CPU of a long run minus CPU of a short one, over the readings between. The column
sleep_cpu_us is our loop without the readings: what waking up 100 times a second costs on this machine at that moment;
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
RATE = 100


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def per_reading(command, short=1, long=5):
    """command(seconds) -> argv. Microseconds of CPU for each reading."""
    cost = cpu_of(command(long)) - cpu_of(command(short))
    return cost / ((long - short) * RATE) * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    spy = str(pathlib.Path(sys.executable).parent / "py-spy")
    version = subprocess.run([spy, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    target = subprocess.Popen([args.python, "-c", SCRIPT])
    try:
        time.sleep(0.5)
        pid = str(target.pid)
        ours = lambda s: [args.tool, pid, "--repeat", str(s * RATE), "--interval-us", str(1000000 // RATE)]
        theirs = lambda s: [spy, "record", "--nonblocking", "--pid", pid, "--rate", str(RATE), "--duration", str(s),
                            "--format", "raw", "--output", os.devnull]
        sleep = lambda s: ours(s) + ["--only-sleep"]
        rows = []
        for i in range(args.rounds):
            a, b, c = per_reading(ours), per_reading(theirs), per_reading(sleep)
            rows.append((a, b, c))
            print(f"round {i}: flatout {a:.1f} us, py-spy {b:.1f} us, ratio {a / b:.3f}; sleep alone {c:.1f} us",
                  flush=True)
    finally:
        target.kill()
        target.wait()
    ours, theirs, sleep = (statistics.median(column) for column in zip(*rows))
    print(f"median ratio {ours / theirs:.3f}; without the sleep {(ours - sleep) / (theirs - sleep):.3f}")
    out = ROOT / "bench" / "results" / "stacks.csv"
    with open(out, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["machine", "target", "peer", "round", "flatout_cpu_us", "peer_cpu_us", "sleep_cpu_us", "load"])
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
        python = subprocess.run([args.python, "-V"], capture_output=True, text=True).stdout.strip()
        load = os.getloadavg()[0]
        for i, (a, b, c) in enumerate(rows):
            writer.writerow([machine, f"{python}, 1 thread, 8 frames", f"{version} --nonblocking", i,
                             f"{a:.1f}", f"{b:.1f}", f"{c:.1f}", f"{load:.1f}"])


if __name__ == "__main__":
    main()

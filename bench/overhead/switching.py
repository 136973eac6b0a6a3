"""What watching costs a job whose threads wake each other all the time, as decoders with threads of their own do.

    FLATOUT_BIN=build/release/flatout python bench/overhead/switching.py [--rounds 5] [--seconds 8] [--old OTHER_FLATOUT]

In two processes of the job two threads each pass a byte to and fro. Plain and watched runs alternate; reported: rounds
of the byte a second and CPU microseconds a round, each as ratio to the plain run beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PAIRS = 2


def passes(source: int, target: int) -> None:
    while True:
        os.write(target, os.read(source, 1))


def job(seconds: float) -> None:
    """Each pair is a process with a thread that answers; the main one only waits for them."""
    ends = []
    for _ in range(PAIRS):
        read, write = os.pipe()
        if os.fork() == 0:
            there, back = os.pipe(), os.pipe()
            threading.Thread(target=passes, args=(there[0], back[1]), daemon=True).start()
            begin, count = time.monotonic(), 0
            while time.monotonic() - begin < seconds:
                os.write(there[1], b"x")
                os.read(back[0], 1)
                count += 1
            os.write(write, count.to_bytes(8, "little"))
            os._exit(0)
        ends.append(read)
    print("rounds", sum(int.from_bytes(os.read(end, 8), "little") for end in ends), flush=True)
    for _ in ends:
        os.wait()


def measured(words: list, seconds: float) -> tuple:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([*words, sys.executable, __file__, "--job", str(seconds)], capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rounds = int(out.split("rounds ")[1].split()[0])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return rounds / seconds, 1e6 * cpu / rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--old", help="another flatout, to compare with")
    parser.add_argument("--job", type=float)
    opts = parser.parse_args()
    if opts.job:
        job(opts.job)
        return
    tools = {"flatout": os.environ["FLATOUT_BIN"], **({"old": opts.old} if opts.old else {})}
    ratios = {name: [] for name in tools}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(opts.rounds):
            speed, cpu = measured([], opts.seconds)
            print(f"plain    {speed:9.0f} rounds/s {cpu:6.2f} us of CPU each", flush=True)
            for name, tool in tools.items():
                run = str(Path(folder) / f"{name}-{len(ratios[name])}")
                watched = measured([tool, "run", "--quiet", "--out", run, "--"], opts.seconds)
                ratios[name].append((watched[0] / speed, watched[1] / cpu))
                print(f"{name:8} {watched[0]:9.0f} rounds/s {watched[1]:6.2f} us of CPU each", flush=True)
    for name, pairs in ratios.items():
        print(f"{name}: speed {statistics.median(p[0] for p in pairs):.3f}, CPU {statistics.median(p[1] for p in pairs):.3f} of plain")


if __name__ == "__main__":
    main()

"""What the recorder costs the job beside it, within one run: it is stopped and goes on, every half second.

    FLATOUT_BIN=build/release/flatout python bench/overhead/alternate.py [--seconds 60]

Runs that follow each other differ by more than one percent on a shared machine; half seconds that follow each
other hardly do. So one `flatout run` gets SIGSTOP and SIGCONT in turn, and each pair of half seconds is compared:
the length of a step, and the job's CPU time per step, all its threads and workers; median of the changes with
a 95 % bootstrap interval. The A/A row is the same with no signal sent. The hooks in the job run on all the while:
their cost is what the agent's own counters say, and it is added to what the signals show. Steps that a flip falls into belong to neither.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path

from overhead import HERE, RATE, ROOT, Job, agent_counters, bootstrap, calibrate, quiet_machine

BLOCK_S = 0.5


def job_cpu_ns(pid: int) -> int:
    """Of all that descends from this process, without itself."""
    total = 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in found:
            for one in Path(f"/proc/{child}/task").glob("*/schedstat"):
                try:
                    total += int(one.read_text().split()[0])
                except OSError:
                    pass
            total += job_cpu_ns(child)
    return total


def flips(process: subprocess.Popen, seconds: float, stops: bool) -> list[tuple[int, bool, int]]:
    """[(ns, recorder runs, the job's CPU time)] of each half second; in pairs, of which one at random comes first."""
    out = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        first = random.random() < 0.5
        for runs in (first, not first):
            if stops:
                process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
            out.append((time.monotonic_ns(), runs, job_cpu_ns(process.pid)))
            time.sleep(BLOCK_S)
    process.send_signal(signal.SIGCONT)
    out.append((time.monotonic_ns(), True, job_cpu_ns(process.pid)))
    return out


def steps_until(begins: list[int], at: int) -> float:
    """With the part of the step under way."""
    i = min(max(bisect_left(begins, at), 1), len(begins) - 1)
    return i - 1 + (at - begins[i - 1]) / (begins[i] - begins[i - 1])


def changes(begins: list[int], lengths: list[int], marks: list[tuple[int, bool, int]]) -> tuple[list[float], list[float]]:
    """Of the mean step and of the CPU time per step, from the half second without the recorder to that with it beside it."""
    out, cpu_out = [], []
    for i in range(0, len(marks) - 2, 2):
        mean, cpu = {}, {}
        for (at, runs, before), (until, _, after) in zip(marks[i:i + 2], marks[i + 1:i + 3]):
            low, high = bisect_left(begins, at), bisect_left(begins, until) - 1
            if high - low >= 5:
                mean[runs] = statistics.fmean(lengths[low:high])
                cpu[runs] = (after - before) / (steps_until(begins, until) - steps_until(begins, at))
        if len(mean) == 2:
            out.append(mean[True] / mean[False] - 1)
            cpu_out.append(cpu[True] / cpu[False] - 1)
    return out, cpu_out


def interval(found: list[float]) -> str:
    return "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*(100 * value for value in bootstrap(found)))


def measure(job: Job, flatout: str, seconds: float, stops: bool) -> tuple[list[float], list[float], dict, float]:
    with tempfile.TemporaryDirectory() as folder:
        times, out = Path(folder) / "times.json", Path(folder) / "run"
        steps = int(1e3 * (seconds + 3) / job.target_ms)
        process = subprocess.Popen(
            [flatout, "run", "--rate", str(RATE), "--quiet", "--out", str(out), "--", sys.executable,
             str(HERE / "job.py"), "--times", str(times), "--steps", str(steps), *job.words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder)
        time.sleep(6)  # imports, workers, first steps
        marks = flips(process, seconds, stops)
        if process.wait() != 0:
            raise SystemExit(f"code {process.returncode}")
        result = json.loads(times.read_text())
        return (*changes(result["begin_ns"], result["step_ns"], marks), agent_counters(out, steps + 20),
                statistics.median(result["step_ns"]) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    opts = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout")))
    print(f"{os.cpu_count()} cores, {quiet_machine()}")
    for name, target, workers, width, batch in (("20 ms, 2 workers", 20, 2, 384, 64),
                                                ("0.5 ms, no workers", 0.5, 0, 64, 16)):
        job = calibrate(name, target, workers, width, batch, 1)
        for row, stops in (("A/A", False), ("flatout", True)):
            found, cpu, agent, step = measure(job, flatout, opts.seconds, stops)
            print(f"{name:20} {row:8} {interval(found)} of {step:.2f} ms; CPU time {interval(cpu)}; {len(found)} pairs; hooks "
                  f"{agent.get('hook_us_per_step', 0):.1f} us a step, longest {agent.get('longest_hook_us', 0):.0f} us",
                  flush=True)


if __name__ == "__main__":
    main()

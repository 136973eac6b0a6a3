"""What watching costs the job: Flatout, py-spy and TraceML against the plain run, at equal rates.

    FLATOUT_BIN=build/release/flatout python bench/overhead/overhead.py [--pairs 8] [--traceml-python PY]

Two jobs: steps of about 20 ms with two loader workers, and of about 0.5 ms without. For each tool, plain
and watched runs alternate (A B, B A, …), and an A/A row shows what the machine itself varies. Reported: median step
and its change with a 95 % bootstrap interval over the pairs, the job's CPU seconds, the growth of wall time, the
tool's own CPU and memory, and for Flatout the agent's own counters (time inside hooks per step, longest
stall). Needs CAP_SYS_NICE to raise its own scheduling group; says so without. Writes bench/results/overhead.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
RATE = 40  # stack readings a second, for every sampler

Command = Callable[[Path, List[str]], List[str]]  # where the tool writes, the job's words -> what is started


@dataclass
class Job:
    name: str
    target_ms: float
    words: List[str]
    steps: int


@dataclass
class Measured:
    """One run of the job under one tool, or none."""

    median_ms: float
    mean_ms: float
    job_cpu_s: float
    wall_s: float
    tool_cpu_s: float  # all CPU of the run but the job's own
    tool_rss_mb: float
    agent: Dict[str, float]


class Peak:
    """Largest resident memory of one process, read ten times a second."""

    def __init__(self, pid: int) -> None:
        self.pid, self.kb, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.over.wait(0.1):
            try:
                with open(f"/proc/{self.pid}/status") as status:
                    for line in status:
                        if line.startswith("VmHWM:"):
                            self.kb = max(self.kb, int(line.split()[1]))
            except OSError:
                return

    def stop(self) -> float:
        self.over.set()
        self.thread.join()
        return self.kb / 1024


def agent_counters(run_folder: Path, steps: int) -> Dict[str, float]:
    """The agent's own counters in the training process, and flatout's own, from run.json."""
    path = run_folder / "run.json"
    if not path.exists():
        return {}
    run = json.loads(path.read_text())
    main = next((p["pid"] for p in run["processes"] if p["main"]), None)
    mine = next((a for a in run["self"]["agents"] if a["pid"] == main), None)
    if not mine:
        return {}
    return {
        "hook_us_per_step": mine["time_ns"] / 1e3 / steps,
        "longest_hook_us": (mine["longest_ns"] or 0) / 1e3,
        "hooks_per_step": mine["hooks"] / steps,
        "dropped": mine["dropped"] or 0,
    }


def plain(_: Path, words: List[str]) -> List[str]:
    return [sys.executable, *words]


def after(*prefix: str) -> Command:
    """The plain command after these words, with OUT for where the tool writes."""
    return lambda out, words: [*(str(out) if word == "OUT" else word for word in prefix), *plain(out, words)]


def by_traceml(python: str) -> Command:
    """As its users start it; the job calls its two functions."""
    return lambda out, words: [str(Path(python).absolute().parent / "traceml"), "run", "--logs-dir", str(out), words[0],
                               "--args", *words[1:], "--traceml"]


def run_once(job: Job, command: Command) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        times, out = Path(folder) / "times.json", Path(folder) / "run"
        words = command(out, [str(HERE / "job.py"), "--times", str(times), "--steps", str(job.steps), *job.words])
        begin = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, cwd=folder)
        peak = Peak(process.pid)
        complaint = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        rss = peak.stop()
        if not times.exists():
            raise RuntimeError(f"{' '.join(words)}: code {process.returncode}\n{complaint.decode()[-2000:]}")
        result = json.loads(times.read_text())
        steps = [ns / 1e6 for ns in result["step_ns"]]
        return Measured(statistics.median(steps), statistics.fmean(steps), result["cpu_s"], wall,
                        max(0.0, usage.ru_utime + usage.ru_stime - result["cpu_s"]), 0.0 if command is plain else rss,
                        agent_counters(out, len(steps) + 20))


def calibrate(name: str, target_ms: float, workers: int, width: int, batch: int, seconds: float) -> Job:
    """Chooses the number of rounds whose step takes about target_ms here; every later run uses the same."""
    rounds = 2
    for _ in range(4):
        words = ["--rounds", str(rounds), "--width", str(width), "--batch", str(batch), "--workers", str(workers)]
        got = run_once(Job(name, target_ms, words, 60), plain).median_ms
        wanted = max(1, round(rounds * target_ms / got))
        if abs(got - target_ms) < 0.15 * target_ms or wanted == rounds:
            break
        rounds = wanted
    print(f"{name}: {' '.join(words)}, {got:.2f} ms a step", flush=True)
    return Job(name, target_ms, words, max(200, int(1e3 * seconds / got)))


def bootstrap(values: List[float]) -> tuple:
    """(median, low, high): its 95 % interval."""
    rng = random.Random(0)
    draws = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), draws[50], draws[1949]


def change(pairs: List[tuple], pick: Callable[[Measured], float], relative: bool = True) -> tuple:
    """Median change from plain to watched over the pairs, with a 95 % bootstrap interval."""
    return bootstrap([pick(b) / pick(a) - 1 if relative else pick(b) - pick(a) for a, b in pairs])


def quiet_machine() -> str:
    """Raises this session's scheduling group, where that is allowed; what was done, in words."""
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write("-15")
        return "autogroup raised"
    except OSError as error:
        return f"autogroup as it was ({error.strerror})"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10, help="length of the training part of one run")
    parser.add_argument("--traceml-python", help="an interpreter that has torch and traceml-ai")
    parser.add_argument("--only", nargs="*", help="tools to run")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "overhead.csv")
    opts = parser.parse_args()
    flatout = os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout"))
    spy = str(Path(sys.executable).parent / "py-spy")
    watch = [flatout, "run", "--rate", str(RATE), "--quiet", "--out", "OUT"]
    record = [spy, "record", "--rate", str(RATE), "--format", "raw", "--subprocesses", "-o", "OUT"]
    tools = {"plain again (A/A)": plain, "flatout": after(*watch, "--"), "flatout, no agent": after(*watch, "--no-agent", "--")}
    if os.path.exists(spy):
        tools["py-spy --nonblocking"] = after(*record, "--nonblocking", "--")
        tools["py-spy"] = after(*record, "--")
    if opts.traceml_python:
        tools["TraceML"] = by_traceml(opts.traceml_python)
    if opts.only:
        tools = {name: command for name, command in tools.items() if any(name.startswith(o) for o in opts.only)}
    note = quiet_machine()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, {note}"
    print(machine)
    jobs = [calibrate("20 ms, 2 workers", 20, 2, 384, 64, opts.seconds),
            calibrate("0.5 ms, no workers", 0.5, 0, 64, 16, opts.seconds)]
    rows = []
    for job in jobs:
        for name, command in tools.items():
            pairs = []
            try:
                for i in range(opts.pairs):
                    if i % 2 == 0:
                        a, b = run_once(job, plain), run_once(job, command)
                    else:
                        b, a = run_once(job, command), run_once(job, plain)
                    pairs.append((a, b))
            except RuntimeError as error:
                print(f"{job.name:20} {name:22} failed: {error}", flush=True)
                continue
            step, low, high = change(pairs, lambda m: m.median_ms)
            added_us, added_low, added_high = (
                1e3 * v for v in change(pairs, lambda m: m.median_ms, relative=False))
            cpu, cpu_low, cpu_high = change(pairs, lambda m: m.job_cpu_s)
            wall = change(pairs, lambda m: m.wall_s, relative=False)
            middle = lambda pick: statistics.median(pick(b) for _, b in pairs)  # noqa: E731
            agent = {k: statistics.median(b.agent[k] for _, b in pairs if k in b.agent)
                     for k in (pairs[0][1].agent or {})}
            if agent:
                agent["longest_hook_us"] = max(b.agent.get("longest_hook_us", 0) for _, b in pairs)
            rows.append({
                "machine": machine, "job": job.name, "tool": name, "pairs": len(pairs), "steps": job.steps,
                "plain_median_ms": round(statistics.median(a.median_ms for a, _ in pairs), 4),
                "step_change": round(step, 5), "step_low": round(low, 5), "step_high": round(high, 5),
                "added_us_per_step": round(added_us, 2), "added_low_us": round(added_low, 2),
                "added_high_us": round(added_high, 2),
                "job_cpu_change": round(cpu, 5), "job_cpu_low": round(cpu_low, 5), "job_cpu_high": round(cpu_high, 5),
                "wall_added_s": round(wall[0], 3), "wall_low_s": round(wall[1], 3), "wall_high_s": round(wall[2], 3),
                "tool_cpu_share_of_core": round(middle(lambda m: m.tool_cpu_s / m.wall_s), 4),
                "tool_rss_mb": round(middle(lambda m: m.tool_rss_mb), 1),
                **{f"agent_{k}": round(agent[k], 3) if k in agent else None
                   for k in ("hook_us_per_step", "longest_hook_us", "hooks_per_step", "dropped")},
            })
            r = rows[-1]
            print(f"{job.name:20} {name:22} step {100 * step:+6.2f} % [{100 * low:+.2f}, {100 * high:+.2f}] "
                  f"({added_us:+.1f} us)  job cpu {100 * cpu:+.2f} % [{100 * cpu_low:+.2f}, {100 * cpu_high:+.2f}]  "
                  f"wall {wall[0]:+.2f} s  tool {100 * r['tool_cpu_share_of_core']:.2f} % of a core, "
                  f"{r['tool_rss_mb']} MB  {agent or ''}", flush=True)
    if rows:
        opts.output.parent.mkdir(parents=True, exist_ok=True)
        with open(opts.output, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

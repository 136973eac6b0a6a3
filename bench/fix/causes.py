"""What `flatout fix` reaches of what removing a cause gains, on the jobs of tests/jobs.

    FLATOUT_BIN=build/release/flatout python bench/fix/causes.py [--rounds 3] [--budget 3m] [--keep DIR] [JOB…]
    FLATOUT_BIN=build/release/flatout python bench/fix/causes.py --aa 10 [--steps FILE] [JOB]

For each job that has a cause which a remedy exists for: `flatout fix` once, without being told the cause. Then runs of
the job as it is, with its cause removed (--fixed) and with what fix kept (`flatout run --with fix.json`) take turns, in
an order that turns too; step times are the job's own figure. The medians of the rounds give the gain by removing
the cause, the gain by fix, and the share of the first that the second reaches: of the saved time, and of the factor
less one, which is the stricter. The goal is 80 %. Healthy jobs must keep nothing.

A named job is measured alone, and its row of bench/results/fix.csv is replaced. --aa N has fix try a remedy that changes
nothing on a healthy job, N times: none may come out "better". Use a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))

import launch  # noqa: E402
from cases import CASES, Case  # noqa: E402

GOAL = 0.8

# The causes that a remedy exists for, and the jobs that have them.
CAUSES: Dict[str, Sequence[str]] = {
    "oversubscription": ("sixteen_threads", "threads_in_workers"),
    "too few workers": ("serial_loading", "slow_store"),
    "decode": ("decode_two_workers",),
    "page faults": ("numpy_temporaries", "fresh_matrix"),
    "allocator": ("one_arena",),
    "affinity": ("pinned_by_script", "pinned_from_outside"),
    "worker restart": ("workers_anew",),
    "checkpoint": ("slow_saves",),
    "logging": ("synced_log", "slow_terminal"),
    "gc": ("collect_each_step",),
    "cold cache": ("cache_given_away", "cold_volumes"),
    "neighbour": ("neighbour", "neighbour_two_threads"),
    "healthy": ("healthy_mlp", "healthy_cnn_serial", "healthy_cnn_workers", "healthy_transformer", "healthy_gan"),
}


@dataclass
class Row:
    """One job; milliseconds per step."""

    machine: str
    cause: str
    job: str
    verdict: str  # of the first run
    kept: str
    tried: str  # every remedy with its verdict
    as_it_is_ms: float
    removed_ms: float
    with_fix_ms: float
    gain_removed: float
    gain_fix: float
    share_of_time: float  # of what removing the cause saves
    share_of_factor: float  # (gain_fix - 1) / (gain_removed - 1)
    fix_s: float
    rounds: int
    holds: str  # yes, no; healthy: whether nothing was kept


def step_ms(case: Case, seconds: float, fixed: bool = False, prefix: Sequence[str] = ()) -> float:
    """The job's own mean step, warm-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        done = launch.run(case, prefix=prefix, fixed=fixed, times=times, extra=["--seconds", str(seconds)])
        if not times.exists():
            raise RuntimeError(f"{case.name}: no times, code {done.code}\n{done.output[-1500:]}")
        return 1e3 * json.loads(times.read_text())["mean_s"]


def run_fix(case: Case, flatout: str, out: Path, opts: argparse.Namespace) -> tuple[dict, float]:
    """fix.json of the case, and how long it took."""
    begin = time.monotonic()
    done = launch.run(case, prefix=[flatout, "fix", "--out", str(out), "--budget", opts.budget, *opts.more, "--"],
                      timeout_s=900, extra=["--seconds", "600"])
    took = time.monotonic() - begin
    (out / "output.txt").write_text(done.output)
    if done.code != 0:
        raise RuntimeError(f"{case.name}: fix ended with {done.code}\n{done.output[-1500:]}")
    return json.loads((out / "fix.json").read_text()), took


def measure(cause: str, case: Case, flatout: str, opts: argparse.Namespace, keep: Path) -> Row:
    out = keep / case.name
    out.mkdir(parents=True, exist_ok=True)
    step_ms(case, 1, fixed=False)  # makes its data set, once
    result, took = run_fix(case, flatout, out, opts)
    ways = {
        "as it is": lambda: step_ms(case, opts.seconds),
        "removed": lambda: step_ms(case, opts.seconds, fixed=True),
        "with fix": lambda: step_ms(case, opts.seconds, prefix=[
            flatout, "run", "--quiet", "--out", str(out / "run"), "--with", str(out / "fix.json"), "--"]),
    }
    if not result["kept"]:
        del ways["with fix"]
    if cause == "healthy":
        ways.clear()  # there is no cause to remove
    got: Dict[str, List[float]] = {name: [] for name in ways}
    for i in range(opts.rounds):
        names = list(ways)
        names = names[i % max(1, len(names)):] + names[:i % max(1, len(names))]
        for name in names:
            got[name].append(ways[name]())
    medians = {name: statistics.median(values) for name, values in got.items()}
    as_is = medians.get("as it is", result["baseline"]["ms_per_step"])
    removed, fixed = medians.get("removed", as_is), medians.get("with fix", as_is)
    saved = as_is - removed
    of_time = (as_is - fixed) / saved if saved > 0 else 0.0
    gain, by_fix = (as_is / removed, as_is / fixed) if removed > 0 and fixed > 0 else (1.0, 1.0)
    of_factor = (by_fix - 1) / (gain - 1) if gain > 1 else 0.0
    holds = not result["kept"] if cause == "healthy" else min(of_time, of_factor) >= GOAL
    tried = " ".join(f"{t['remedy']}:{t['verdict'].replace(' ', '_')}" for t in result["trials"])
    return Row(f"{os.cpu_count()} cores, Linux {platform.release()}", cause, case.name,
               result["baseline"]["verdict"], " ".join(result["kept"]), tried,
               round(as_is, 3), round(removed, 3), round(fixed, 3), round(gain, 3), round(by_fix, 3), round(of_time, 3),
               round(of_factor, 3), round(took, 1), opts.rounds, "yes" if holds else "no")


def show(row: Row) -> None:
    print(f"{row.cause:17} {row.job:22} {row.as_it_is_ms:8.2f} {row.removed_ms:8.2f} {row.with_fix_ms:8.2f} "
          f"{row.gain_removed:7.2f} {row.gain_fix:7.2f} {row.share_of_time:7.0%} {row.share_of_factor:7.0%} {row.fix_s:6.0f} s"
          f"  {row.holds:3}  {row.kept or '-'}", flush=True)


def record(row: Row, path: Path) -> None:
    """Replaces the job's row, in the order of CAUSES."""
    rows = {}
    if path.exists():
        with open(path, newline="") as file:
            rows = {old["job"]: old for old in csv.DictReader(file)}
    rows[row.job] = asdict(row)
    order = [job for jobs in CAUSES.values() for job in jobs]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(asdict(row)))
        writer.writeheader()
        writer.writerows(sorted(rows.values(), key=lambda r: order.index(r["job"])))


def against_itself(case: Case, flatout: str, trials: int, steps: Optional[Path]) -> int:
    """Trials of the job against itself, by the program that does nothing else. `steps`: a file for all step times."""
    program = Path(flatout).parent / "fix_itself"
    if not program.exists():
        raise SystemExit(f"{program} is not built: ninja -C {Path(flatout).parent} fix_itself")
    step_ms(case, 1)
    words = [str(program), *(["--steps", str(steps.absolute())] if steps else []), "--"]
    better = 0
    for i in range(trials):
        done = launch.run(case, prefix=words, timeout_s=900, extra=["--seconds", "600"])
        line = done.output.strip().splitlines()[-1] if done.output.strip() else f"code {done.code}"
        better += line.startswith("better")
        print(f"{i + 1:3} {case.name}: {line}", flush=True)
    print(f"{better} of {trials} came out better")
    return 1 if better else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="length of each measured run's training")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--skip", default="", help="remedies that fix shall not try")
    parser.add_argument("--keep", type=Path, help="a folder for what fix wrote")
    parser.add_argument("--aa", type=int, default=0, help="trials of a job against itself")
    parser.add_argument("--steps", type=Path, help="with --aa: a file to which the step times of all runs are appended")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "fix.csv")
    parser.add_argument("jobs", nargs="*")
    opts = parser.parse_args()
    opts.more = ["--skip", opts.skip] if opts.skip else []
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout")))
    cases = {case.name: case for case in CASES}
    if opts.aa:
        return against_itself(cases[opts.jobs[0] if opts.jobs else "healthy_mlp"], flatout, opts.aa, opts.steps)
    scratch = tempfile.TemporaryDirectory(dir="/var/tmp")  # what trials see of /tmp is an overlay
    keep = opts.keep.absolute() if opts.keep else Path(scratch.name)
    print(f"{'cause':17} {'job':22} {'as is':>8} {'removed':>8} {'with fix':>8} {'gain':>7} {'by fix':>7} {'of time':>7} "
          f"{'factor':>7} {'fix took':>8}  {'>80':3}  kept")
    rows = []
    for cause, jobs in CAUSES.items():
        for job in jobs:
            if opts.jobs and job not in opts.jobs:
                continue
            if missing := launch.lacking(cases[job]):
                print(f"{cause:17} {job:22} skipped: lacks {', '.join(missing)}")
                continue
            try:
                row = measure(cause, cases[job], flatout, opts, keep)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                print(f"{cause:17} {job:22} failed: {error}")
                continue
            rows.append(row)
            show(row)
            record(row, opts.output)
    print(f"{sum(row.holds == 'yes' for row in rows)} of {len(rows)} hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())

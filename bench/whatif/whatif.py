"""Predicted against measured gain: does `gain` hold when the cause is really taken away?

    FLATOUT_BIN=build/release/flatout python bench/whatif/whatif.py [--rounds 3] [--keep DIR] [NAME…]
    FLATOUT_BIN=build/release/flatout python bench/whatif/whatif.py --again DIR

For each job of tests/jobs with a step cost, runs under `flatout run` with the cause and plain runs with --fixed
alternate (A B B A …). Each prediction is made from a run, and is held against that run's own step time: a
shared machine is another one a minute later. By findings.md it holds if it is off by at most 15 % of the saved
time or 2 % of the step, whichever is larger; medians over the rounds. Only jobs with a measured gain of 1.2 or
more count. Writes bench/results/whatif.csv. Use a quiet machine. --keep DIR keeps the runs and times, and --again
DIR predicts anew from them, by another build.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))

import launch  # noqa: E402
from cases import CASES, Case  # noqa: E402

LEAST_GAIN = 1.2


@dataclass
class Row:
    """One job's comparison; milliseconds per step."""

    machine: str
    job: str
    finding: str
    rounds: int
    cause_ms: float
    fixed_ms: float
    saved_ms: float
    saved_low_ms: float  # 95 % bootstrap interval over the rounds
    saved_high_ms: float
    measured_gain: float
    predicted_gain: Optional[float]
    predicted_ms: Optional[float]  # per step, without the cause
    allowed_ms: float
    off_ms: Optional[float]
    holds: str  # yes, no, not found, small (gain below 1.2)


def mean_ms(times: Path, case: Case, done: launch.Done) -> float:
    """The job's own figure of its steps, warm-up left out."""
    if not times.exists():
        raise RuntimeError(f"{case.name}: no times, code {done.code}\n{done.output[-1500:]}")
    return 1e3 * json.loads(times.read_text())["mean_s"]


def fixed_ms(case: Case) -> float:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        return mean_ms(times, case, launch.run(case, fixed=True, times=times))


def gain_of(case: Case, findings: List[dict]) -> Optional[float]:
    return next((f["gain"] for f in findings if f["id"] == case.expect), None)


def with_cause(case: Case, flatout: str, out: Path) -> Tuple[float, Optional[float]]:
    """Milliseconds per step, and the gain that findings.json predicts for the case's own cause."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        done = launch.run(case, prefix=[flatout, "run", "--out", str(out), "--"], times=times)
        return mean_ms(times, case, done), gain_of(case, json.loads((out / "findings.json").read_text())["findings"])


@dataclass
class Measured:
    """Of one job: each run with the cause (ms per step, predicted gain), each without (ms per step)."""

    causes: List[Tuple[float, Optional[float]]]
    fixes: List[float]


def measure(case: Case, flatout: str, rounds: int, keep: Path) -> Measured:
    got = Measured([], [])
    for i in range(rounds):
        for fixed in (False, True) if i % 2 == 0 else (True, False):
            if fixed:
                got.fixes.append(fixed_ms(case))
            else:
                got.causes.append(with_cause(case, flatout, keep / f"{case.name}-{i + 1}"))
    (keep / f"{case.name}.json").write_text(json.dumps(asdict(got)) + "\n")
    return got


def again(case: Case, flatout: str, keep: Path) -> Measured:
    """What measure() left in `keep`, with the predictions of this build."""
    kept = json.loads((keep / f"{case.name}.json").read_text())
    causes = []
    for i, (ms, _) in enumerate(kept["causes"]):
        done = subprocess.run([flatout, "report", "--json", str(keep / f"{case.name}-{i + 1}")], capture_output=True,
                              text=True, check=True)
        causes.append((ms, gain_of(case, json.loads(done.stdout)["findings"])))
    return Measured(causes, kept["fixes"])


def interval(values: List[float], draws: int = 2000) -> Tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def judge(case: Case, got: Measured, machine: str) -> Row:
    causes, fixes = got.causes, got.fixes
    fixed = statistics.median(fixes)
    found = [(ms, gain) for ms, gain in causes if gain]
    cause = statistics.median(ms for ms, _ in found or causes)
    saved = cause - fixed
    low, high = interval([ms - f for (ms, _), f in zip(causes, fixes)])
    allowed = max(0.15 * saved, 0.02 * cause)
    after = statistics.median(ms / gain for ms, gain in found) if len(found) * 2 > len(causes) else None
    off = abs(after - fixed) if after is not None else None
    if cause / fixed < LEAST_GAIN:
        holds = "small"
    elif off is None:
        holds = "not found"
    else:
        holds = "yes" if off <= allowed else "no"
    digits = lambda v: None if v is None else round(v, 3)  # noqa: E731
    return Row(machine, case.name, case.expect, len(causes), digits(cause), digits(fixed), digits(saved), digits(low),
               digits(high), digits(cause / fixed), digits(cause / after if after else None), digits(after),
               digits(allowed), digits(off), holds)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "whatif.csv")
    parser.add_argument("--keep", type=Path, help="a folder for the runs that gave the predictions")
    parser.add_argument("--again", type=Path, help="the folder of --keep: predict anew from its runs")
    parser.add_argument("names", nargs="*")
    opts = parser.parse_args()
    flatout = os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout"))
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
    rows: List[Row] = []
    scratch = tempfile.TemporaryDirectory()
    keep = opts.keep or Path(scratch.name)
    keep.mkdir(parents=True, exist_ok=True)
    print(f"{'job':24} {'finding':22} {'cause':>9} {'fixed':>9} {'gain':>6} {'predicted':>9} {'off':>8} {'allowed':>8}  holds")
    for case in CASES:
        if opts.names and case.name not in opts.names:
            continue
        if not case.step_cost or case.expect_any:
            continue
        if missing := launch.lacking(case):
            print(f"{case.name:24} skipped: lacks {', '.join(missing)}")
            continue
        try:
            if opts.again:
                got = again(case, flatout, opts.again)
            else:
                got = measure(case, flatout, opts.rounds, keep)
            row = judge(case, got, machine)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            print(f"{case.name:24} failed: {error}")
            continue
        rows.append(row)
        show = lambda v: "-" if v is None else f"{v:.2f}"  # noqa: E731
        print(f"{row.job:24} {row.finding:22} {row.cause_ms:9.2f} {row.fixed_ms:9.2f} {row.measured_gain:6.2f} "
              f"{show(row.predicted_gain):>9} {show(row.off_ms):>8} {row.allowed_ms:8.2f}  {row.holds}", flush=True)
    counted = [r for r in rows if r.holds != "small"]
    good = sum(r.holds == "yes" for r in counted)
    if counted:
        print(f"{good} of {len(counted)} predictions hold ({good / len(counted):.0%}); "
              f"{len(rows) - len(counted)} jobs with a gain below {LEAST_GAIN} are left out")
    if rows and not opts.names:
        opts.output.parent.mkdir(parents=True, exist_ok=True)
        with open(opts.output, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(r) for r in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

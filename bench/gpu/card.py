"""On a card: is the doctor's busy and idle torch.profiler's, and what does watching cost?

    FLATOUT_BIN=build/release/flatout build/venv/bin/python bench/gpu/card.py --rounds 5

tests/jobs/card.py (ResNet-50 and a transformer, eager and compiled) in turns: alone, below `flatout run`, below `flatout run
--cupti`, and with torch.profiler, whose trace `flatout trace summary` reads. Printed for each: the device's busy share as both see it,
the difference in points (goal: at most 1), and the median step against the job alone (goal: at most 1 % without CUPTI, 3 % with it).
Writes bench/results/card.csv. Without a card it says so and ends with exit code 77.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "jobs" / "card.py"
RESULTS = ROOT / "bench" / "results" / "card.csv"


def run_job(before: list[str], words: list[str]) -> float:
    """The median step in ms."""
    done = subprocess.run([*before, sys.executable, str(JOB), *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])["median_ms"]


def watched_busy(folder: str) -> float:
    devices = json.loads(Path(folder, "findings.json").read_text())["devices"]
    if not devices:
        run = json.loads(Path(folder, "run.json").read_text())
        raise SystemExit(f"the run saw no device: {run.get('missing')}")
    return devices[0]["busy"]


def profiled_busy(flatout: str, trace: str) -> float:
    done = subprocess.run([flatout, "trace", "summary", trace, "--json"], capture_output=True, text=True, check=True)
    (summary,) = json.loads(done.stdout)["traces"].values()
    device = next(iter(summary["devices"].values()))
    return device["busy_us"] / device["span_us"]


def measure(flatout: str, model: str, compiled: bool, rounds: int, steps: int) -> dict:
    words = ["--model", model, "--steps", str(steps), *(["--compile"] if compiled else [])]
    taken: dict[str, list[float]] = {name: [] for name in ("alone", "flatout", "cupti", "busy", "busy_profiler")}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            out, trace = f"{folder}/{number}", f"{folder}/{number}.json"
            taken["alone"].append(run_job([], words))
            taken["flatout"].append(run_job([flatout, "run", "--quiet", "--out", f"{out}-plain", "--"], words))
            taken["cupti"].append(run_job([flatout, "run", "--quiet", "--cupti", "--out", out, "--"], words))
            taken["busy"].append(watched_busy(out))
            run_job([], [*words, "--profile", trace])
            taken["busy_profiler"].append(profiled_busy(flatout, trace))
    middle = {name: statistics.median(values) for name, values in taken.items()}
    return {"model": model, "compiled": compiled, "rounds": rounds, "step_ms": round(middle["alone"], 3),
            "busy": round(middle["busy"], 4), "busy_profiler": round(middle["busy_profiler"], 4),
            "points_apart": round(100 * abs(middle["busy"] - middle["busy_profiler"]), 2),
            "cost": round(middle["flatout"] / middle["alone"] - 1, 4), "cost_cupti": round(middle["cupti"] / middle["alone"] - 1, 4)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--models", nargs="*", choices=("resnet50", "transformer"), default=["resnet50", "transformer"])
    parser.add_argument("--modes", nargs="*", choices=("eager", "compiled"), default=["eager", "compiled"])
    opts = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout")))
    rows = []
    for model in opts.models:
        for mode in opts.modes:
            rows.append(measure(flatout, model, mode == "compiled", opts.rounds, opts.steps))
            print(rows[-1], flush=True)
    with open(RESULTS, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

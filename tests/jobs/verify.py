"""Measures every job with its cause and with --fixed, without Flatout.

    python tests/jobs/verify.py [--rounds 3] [--seconds 3] [NAME…]

Runs alternate; a gain is the ratio of the mean step times (median of the rounds). Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import launch
from cases import CASES, Case


def measure(case: Case, fixed: bool, extra: list[str]) -> tuple[float, float]:
    """Mean step in seconds and page faults per step."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        done = launch.run(case, fixed=fixed, times=times, extra=extra)
        if not times.exists():
            raise SystemExit(f"{case.name}{' --fixed' * fixed} wrote no times, code {done.code}:\n{done.output[-2000:]}")
        result = json.loads(times.read_text())
        return result["mean_s"], result["minor_faults_per_step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", help="length of each run's training, instead of the job's own")
    parser.add_argument("names", nargs="*")
    opts = parser.parse_args()
    extra = ["--seconds", opts.seconds] if opts.seconds else []
    for case in CASES:
        if opts.names and case.name not in opts.names:
            continue
        if not case.step_cost or (missing := launch.lacking(case)):
            if case.step_cost:
                print(f"{case.name:26} skipped: lacks {', '.join(missing)}")
            continue
        pairs = [(measure(case, False, extra), measure(case, True, extra)) for _ in range(opts.rounds)]
        slow, fast = (statistics.median(run[0] for run in runs) for runs in zip(*pairs))
        faults = statistics.median(run[0][1] for run in pairs)
        weak = "  too weak" if slow / fast < 1.3 else ""
        print(f"{case.name:26} {1e3 * slow:9.2f} ms {1e3 * fast:9.2f} ms  gain {slow / fast:5.2f}  "
              f"{faults:7.0f} faults a step{weak}", flush=True)


if __name__ == "__main__":
    main()

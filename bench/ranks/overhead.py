"""What a recorder for each rank costs the job: CPU seconds and time of two gloo ranks, with and without, in turns.

    FLATOUT_BIN=build/release/flatout build/venv/bin/python bench/ranks/overhead.py --rounds 5

CPU seconds are those of all processes, the recorders and torchrun included; time is from the launcher's start to its end, the
merged report included. The medians of the rounds, and of a second series without flatout beside the first (A/A).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "jobs" / "ranks.py"


def once(prefix: list[str], ranks: int, steps: int) -> tuple[float, float]:
    """CPU seconds, seconds."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "--no-python", *prefix,
             sys.executable, str(JOB), "--steps", str(steps)]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    with tempfile.TemporaryDirectory() as folder:
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(words, env=environment, cwd=folder, capture_output=True, check=True, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    opts = parser.parse_args()
    flatout = os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout"))
    series = {"without": [], "without, again": [], "with": []}
    for _ in range(opts.rounds):
        for name, taken in series.items():
            prefix = [os.path.abspath(flatout), "run", "--"] if name == "with" else []
            taken.append(once(prefix, opts.ranks, opts.steps))
    for column, what in enumerate(("CPU s", "s")):
        middle = {name: statistics.median(t[column] for t in taken) for name, taken in series.items()}
        base = middle["without"]
        print(", ".join(f"{name} {value:.2f} {what} ({value / base - 1:+.1%})" for name, value in middle.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

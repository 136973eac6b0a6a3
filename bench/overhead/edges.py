"""What `flatout run` adds before a job begins and after it has ended, the final verdict and all files included.

    FLATOUT_BIN=build/release/flatout python bench/overhead/edges.py [--rounds 5] [--seconds 20]

Before: from the command to the first line of a Python script. After: from the last line of a training job (two
workers, some twenty seconds) to the prompt. Plain and watched runs alternate; medians, in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIRST_LINE = "import time; print(time.monotonic_ns())"


def before_ms(prefix: list[str], folder: str) -> float:
    begin = time.monotonic_ns()
    done = subprocess.run([*prefix, sys.executable, "-c", FIRST_LINE], capture_output=True, text=True, cwd=folder, check=True)
    return (int(done.stdout) - begin) / 1e6


def after_ms(prefix: list[str], folder: str, steps: int) -> float:
    times = Path(folder) / "times.json"
    words = ["--times", str(times), "--steps", str(steps), "--rounds", "25", "--width", "384", "--batch", "64", "--workers", "2"]
    subprocess.run([*prefix, sys.executable, str(HERE / "job.py"), *words], capture_output=True, cwd=folder, check=True)
    return (time.time_ns() - times.stat().st_mtime_ns) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    opts = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", "flatout"))
    prefixes = {"plain": [], "flatout": [flatout, "run", "--"]}
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(opts.rounds):
            for name, prefix in prefixes.items():
                found.setdefault(("before", name), []).append(before_ms(prefix, folder))
                found.setdefault(("after", name), []).append(after_ms(prefix, folder, int(opts.seconds * 50)))
    for edge in ("before", "after"):
        plain, watched = found[edge, "plain"], found[edge, "flatout"]
        print(f"{edge}: plain {statistics.median(plain):.0f} ms, flatout {statistics.median(watched):.0f} ms; "
              f"flatout's {', '.join(f'{v:.0f}' for v in watched)}")


if __name__ == "__main__":
    main()

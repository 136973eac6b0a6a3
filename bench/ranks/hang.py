"""How soon a stopped rank is told while its job still runs: on the status line, in medians of the step.

    FLATOUT_BIN=build/release/flatout build/venv/bin/python bench/ranks/hang.py

Two real ranks over gloo and over MPI (tests/jobs/ranks.py), one recorder around both on a terminal of its own. Rank 1 stops itself at
step 40; counted is the time from then until `stall.hang` stands on the terminal. The job is then killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from causes import JOB, MPIRUN, ROOT

PATIENCE = 60.0  # s


def ranks(mark: str) -> dict[int, str]:
    """The job's processes with their states."""
    found = {}
    for proc in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (proc / "cmdline").read_bytes().decode().split("\0") if proc.name.isdigit() else []
            if mark in words and words[0] == sys.executable:
                found[int(proc.name)] = (proc / "stat").read_text().rpartition(")")[2].split()[0]
    return found


def once(flatout: str, engine: str, width: int) -> tuple[float, float]:
    """Seconds until it was told, and the median step in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"{PATIENCE + time.time():.6f}"  # one --end-after for each run: nobody else's processes are killed
        job = [sys.executable, str(JOB), "--engine", engine, "--cause", "stop", "--width", str(width), "--end-after", mark]
        words = [flatout, "run", "--out", f"{folder}/run", "--", *([*MPIRUN, "2"] if engine == "mpi" else []), *job]
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvp(words[0], words)
        stopped = told = None
        while True:
            ready, _, _ = select.select([terminal], [], [], 0.01)
            if ready:
                try:
                    text = os.read(terminal, 1 << 16)
                except OSError:  # its end
                    break
                if stopped and not told and b"stall.hang" in text:
                    told = time.monotonic()
            states = ranks(mark)
            if stopped is None and "T" in states.values():
                stopped = time.monotonic()
            if told or (stopped and time.monotonic() - stopped > PATIENCE):
                for process in states:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
        os.waitpid(pid, 0)
        if told is None:
            raise SystemExit(f"{engine}: not told within {PATIENCE:.0f} s")
        found = json.loads(Path(folder, "run", "findings.json").read_text())
        if "Rank 1 is missing" not in found["findings"][0]["title"]:
            raise SystemExit(f"{engine}: {found['findings'][0]['title']}")
        return told - stopped, found["job"]["step_ms"] / 1e3


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--width", type=int, default=1200, help="how much each step computes")
    opts = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout")))
    for engine in ("gloo", "mpi"):
        taken = [once(flatout, engine, opts.width) for _ in range(opts.runs)]
        print(f"{engine}: " + ", ".join(f"{s:.2f} s = {s / median:.1f} x {median * 1e3:.0f} ms" for s, median in taken), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Starts the built program (FLATOUT_BIN, default build/release/flatout) and jobs under it."""

import os
import pathlib
import select
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("FLATOUT_BIN", str(ROOT / "build/release/flatout"))


def flatout(*args, cwd, **kw):
    kw.setdefault("timeout", 120)
    return subprocess.run([BIN, *args], cwd=cwd, capture_output=True, **kw)


def latest(cwd):
    return pathlib.Path(cwd) / "flatout-runs" / "latest"


def start(cwd, *command, flags=("--quiet",), **kw):
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([BIN, "run", *flags, "--", *command], cwd=cwd, **kw)


def read_line(stream, limit=60):
    """One line of a pipe, or a failed test instead of one that hangs."""
    ready, _, _ = select.select([stream], [], [], limit)
    assert ready, "the job said nothing"
    return stream.readline().decode().strip()


def processes_of(text):
    """Pids whose command line contains `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def wait_until(condition, limit=60):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False

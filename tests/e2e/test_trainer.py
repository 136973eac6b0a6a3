"""`flatout run -- flatout train --inject CAUSE`: each cause that the trainer can build in is the verdict.

A wrong answer is judged by the majority of three runs, since the machines are shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CAUSES = [
    "none", "input.decode_cpu", "input.too_few_workers", "input.small_files", "input.random_seek", "input.collate",
    "input.worker_skew", "cpu.noisy_neighbour", "cpu.oversubscribed", "cpu.affinity", "cpu.process_churn",
    "mem.page_faults", "mem.leak", "mem.allocator", "stall.checkpoint", "stall.logging", "stall.idle_wait", "stall.hang",
    "crash.signal", "crash.exception",
]
VERDICTS = {"none": "healthy"}
MORE = {"stall.hang": ["--hang-seconds", "9"]}  # without, it has to be ended from outside; tests/jobs has one
SLOW = ("input.random_seek", "input.small_files", "input.too_few_workers", "mem.page_faults", "mem.allocator",
        "cpu.oversubscribed")  # a step takes several times as long: half as many do
MORE |= {cause: ["--steps", "150"] for cause in SLOW}


@contextlib.contextmanager
def neighbours(flatout: str, cause: str):
    """Busy processes that are not the job's, where the cause is one of them."""
    if cause != "cpu.noisy_neighbour":
        yield
        return
    command = [flatout, "train", "--neighbours", str(2 * (os.cpu_count() or 1)), "--seconds", "60"]
    with subprocess.Popen(command, start_new_session=True) as others:
        try:
            while True:  # until they run
                with socket.socket(socket.AF_UNIX) as probe:
                    if probe.connect_ex(f"\0flatout-neighbours-{os.getuid()}") == 0:
                        break
                time.sleep(0.01)
            yield
        finally:
            os.killpg(others.pid, signal.SIGTERM)


def verdict(flatout: str, cause: str, folder: Path) -> str:
    command = [flatout, "run", "--quiet", "--out", str(folder), "--", flatout, "train", "--inject", cause,
               *MORE.get(cause, [])]
    with neighbours(flatout, cause):
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    return json.loads((folder / "findings.json").read_text())["verdict"]


def test_the_list_is_what_the_trainer_offers(flatout: str) -> None:
    text = subprocess.run([flatout, "train", "--inject", "list"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in text.splitlines()] == CAUSES


def marked(cause: str):
    """How it ends is the verdict, whatever took the cores before."""
    return pytest.param(cause, marks=[pytest.mark.parallel] if cause.startswith("crash.") or cause == "stall.hang" else [])


@pytest.mark.parametrize("cause", [marked(c) for c in CAUSES])
def test_the_injected_cause_is_the_verdict(flatout: str, tmp_path: Path, cause: str) -> None:
    expected = VERDICTS.get(cause, cause)
    got = [verdict(flatout, cause, tmp_path / "1")]
    if got[0] != expected:
        got.append(verdict(flatout, cause, tmp_path / "2"))
    if got.count(expected) == 1 and len(got) == 2:
        got.append(verdict(flatout, cause, tmp_path / "3"))
    assert got.count(expected) > len(got) / 2, f"{cause}: {got}"

"""Starts a case's job, with or without a prefix (flatout run …), together with what surrounds it.

Shared by the end-to-end tests, verify.py and the benches: groups with limits, neighbours in their own
sessions, a slow reader of the job's output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

import groups
from cases import HERE, Case


@dataclass
class Done:
    """How a run ended."""

    code: int
    output: str
    wall_s: float
    neighbour_pids: List[int]


def lacking(case: Case) -> List[str]:
    """What this machine lacks for the case."""
    return [text for text in map(groups.lacks, case.needs) if text]


def command(case: Case, fixed: bool, times: Optional[Path] = None, python: str = sys.executable) -> List[str]:
    words = [python, str(case.path), *case.args]
    if fixed:
        words.append("--fixed")
    if times:
        words += ["--times", str(times)]
    before = case.before if not fixed or case.fixed_before is None else case.fixed_before
    return [*before, *words]


def environment(case: Case, fixed: bool) -> dict:
    chosen = case.fixed_env if fixed and case.fixed_env is not None else case.env
    return {**os.environ, "PYTHONUNBUFFERED": "1", **chosen}


def _start_neighbour(words: Sequence[str], python: str) -> subprocess.Popen:
    line = [python if w == "PYTHON" else str(HERE / w) if w.endswith(".py") else w for w in words]
    return subprocess.Popen(line, start_new_session=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _drain(stream, sink, bytes_per_s: int) -> None:
    """Reads all output; at a limited rate where one is given (64 KiB pipe and all)."""
    while True:
        data = os.read(stream.fileno(), 65536 if not bytes_per_s else max(1, bytes_per_s // 50))
        if not data:
            return
        sink.write(data)
        if bytes_per_s:
            time.sleep(len(data) / bytes_per_s)


def run(case: Case, prefix: Sequence[str] = (), fixed: bool = False, times: Optional[Path] = None,
        python: str = sys.executable, timeout_s: float = 120.0, extra: Sequence[str] = ()) -> Done:
    """Runs the case's job to its end. The prefix goes before everything, the groups' included."""
    wanted = (case.fixed_limits or {}) if fixed else case.limits
    if "memory" in wanted:
        # The pages of libraries count for the group that reads them first. One that may throw them out and read them
        # again has its processes wait for a long time before one is killed.
        subprocess.run([*command(case, True, None, python), "--steps", "3"], check=False, capture_output=True)
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(groups.limits(wanted))
        words = [*prefix, *before, *command(case, fixed, times, python), *extra]
        neighbours: List[subprocess.Popen] = []
        with_them = case.neighbours and (not fixed or case.neighbours_when_fixed)

        def surround() -> None:
            neighbours.extend(_start_neighbour(n, python) for n in case.neighbours)

        if with_them and not case.neighbour_delay_s:
            surround()
            time.sleep(0.3)
        sink = stack.enter_context(tempfile.TemporaryFile())
        begin = time.monotonic()
        job = subprocess.Popen(words, env=environment(case, fixed), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tempfile.gettempdir())
        rate = 0 if fixed else case.slow_stdout_bytes_per_s
        reader = threading.Thread(target=_drain, args=(job.stdout, sink, rate))
        reader.start()
        timers = [threading.Timer(timeout_s, job.kill)]
        if with_them and case.neighbour_delay_s:
            timers.append(threading.Timer(case.neighbour_delay_s, surround))
        if case.end_after_s and not fixed:
            timers.append(threading.Timer(case.end_after_s, job.send_signal, (signal.SIGTERM,)))
        for timer in timers:
            timer.start()
        try:
            code = job.wait()
            wall = time.monotonic() - begin
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
            for neighbour in neighbours:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(neighbour.pid, signal.SIGKILL)
                neighbour.wait()
            reader.join(timeout=30)
        sink.seek(0)
        return Done(code, sink.read().decode(errors="replace"), wall, [n.pid for n in neighbours])

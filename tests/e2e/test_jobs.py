"""Every job of tests/jobs under `flatout run`: the injected cause is the verdict, healthy jobs get none.

One job at a time: they measure the machine. Those that end by a crash or hang are known by that, not by
their time: they are marked `parallel`. Only the cases of tests/jobs/settled.txt run, unless
FLATOUT_ALL_JOBS=1 (`make jobs`). A wrong answer is judged by the majority of three runs, since the
machines are shared; FLATOUT_NO_RETRY=1 takes the first one. FLATOUT_KEEP=DIR keeps the run folders.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import launch
from cases import CASES, Case

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MOST_NOISE = 0.1  # of the cores, taken by others: from there on a neighbour may truly be what costs most
CHANGE_SLACK = 8  # steps: what the loader had ready when the speed changed


def machine_busy_s() -> float:
    """Seconds that cores of this machine were busy, or taken by the hypervisor, since boot."""
    with open("/proc/stat") as stat:
        ticks = [int(v) for v in stat.readline().split()[1:]]
    user, nice, system, _idle, _wait, irq, soft, steal = ticks[:8]
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class Outcome:
    """One run under flatout: what it found and how busy the rest of the machine was."""

    def __init__(self, case: Case, flatout: str, python: str, folder: Path) -> None:
        before, own = machine_busy_s(), os.times()
        self.done = launch.run(case, prefix=[flatout, "run", "--out", str(folder), "--"], python=python)
        after, now = machine_busy_s(), os.times()
        ours = now.children_user + now.children_system - own.children_user - own.children_system
        ours += now.user + now.system - own.user - own.system
        cores = os.cpu_count() or 1
        # Neighbours of the case are children of ours, reaped by launch: they count as ours.
        self.noise = max(0.0, after - before - ours) / (self.done.wall_s * cores)
        self.folder = folder
        path = folder / "findings.json"
        assert path.exists(), f"no findings.json; code {self.done.code}\n{self.done.output[-3000:]}"
        self.json = json.loads(path.read_text())
        self.ids = [f["id"] for f in self.json["findings"]]


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with a run's verdict, in words; empty if nothing is."""
    wrong = []
    verdict, ids = outcome.json["verdict"], outcome.ids
    if case.exit_code is not None and outcome.done.code != case.exit_code:
        wrong.append(f"exit code {outcome.done.code}, the job's own is {case.exit_code}")
    if case.healthy:
        if verdict != "healthy" or ids:
            wrong.append(f"a healthy job was given {ids or verdict}")
        return wrong
    right = {case.expect} | case.expect_any | case.also_right
    if verdict not in right:
        wrong.append(f"verdict {verdict}, expected {' or '.join(sorted(right))}; findings {ids}")
        return wrong
    if absent := case.expect_any - set(ids):
        wrong.append(f"second cause {sorted(absent)} not found; findings {ids}")
    if case.blames:
        where = outcome.json["findings"][0].get("where") or {}
        got = (os.path.basename(where.get("file", "")), where.get("line"))
        if got not in case.cause_lines():
            wrong.append(f"where is {got}, the cause is at {case.cause_lines()}")
    if case.changes_at is not None:
        steps = [c["step"] for c in outcome.json.get("speed_changes", [])]
        if not any(abs(s - case.changes_at) <= CHANGE_SLACK for s in steps):
            wrong.append(f"the speed changes at step {case.changes_at}, it names {steps}")
    return wrong


def screen(flatout: str, folder: Path) -> str:
    """What `flatout report` prints of a run folder."""
    return subprocess.run([flatout, "report", str(folder), "--format", "text"], capture_output=True,
                          text=True, timeout=60, check=True).stdout


def chosen() -> list[Case]:
    if "FLATOUT_ALL_JOBS" in os.environ:
        return list(CASES)
    settled = (Path(launch.__file__).parent / "settled.txt").read_text().split()
    return [c for c in CASES if c.name in settled]


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """How it ends is the verdict, whatever took the cores before."""
    by_its_end = case.expect.startswith("crash.") or case.expect in ("mem.shm", "stall.hang")
    return [pytest.mark.parallel] if by_its_end else []


@pytest.mark.parametrize("case", [pytest.param(c, marks=marks(c), id=c.name) for c in chosen()])
def test_the_verdict_names_the_cause(case: Case, flatout: str, job_python: str, tmp_path: Path) -> None:
    if lacks := launch.lacking(case):
        pytest.skip(f"{case.name} lacks {', '.join(lacks)}")
    keep = Path(os.environ["FLATOUT_KEEP"]) / case.name if "FLATOUT_KEEP" in os.environ else tmp_path / "run"
    keep.parent.mkdir(parents=True, exist_ok=True)
    runs = []
    while True:
        outcome = Outcome(case, flatout, job_python, keep.with_name(f"{keep.name}-{len(runs) + 1}"))
        runs.append(complaints(case, outcome))
        good, bad = sum(not r for r in runs), sum(bool(r) for r in runs)
        if runs[-1]:
            print(f"{case.name}: {runs[-1]}; others took {outcome.noise:.0%} of the cores; {outcome.folder}")
        if good == 2 or bad == 2 or (good and not bad) or "FLATOUT_NO_RETRY" in os.environ:
            break
    if runs[-1] and outcome.noise > MOST_NOISE and outcome.ids[:1] == ["cpu.noisy_neighbour"]:
        pytest.skip(f"{case.name} lacks a quiet machine: others took {outcome.noise:.0%} of the cores")
    assert not runs[-1], f"{bad} of {len(runs)} runs were wrong, the last: {'; '.join(runs[-1])}"
    text = screen(flatout, outcome.folder)
    said = "Healthy" if case.healthy else outcome.json["verdict"]
    assert said in text, f"the screen does not name the verdict:\n{text}"

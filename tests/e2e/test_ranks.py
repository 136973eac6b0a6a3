"""Ranks that train together: who holds up the others and why, on real gloo ranks of this machine.

tests/jobs/ranks.py is the job; rank 1 has the cause. Times are not asserted, shares are: a rank that
does about twice the others' work is late on any machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[1] / "jobs" / "ranks.py"
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in LAUNCHED}

needs_torch = pytest.mark.skipif("PYTHON" not in os.environ and importlib.util.find_spec("torch") is None,
                                 reason="lacks PyTorch")
pytestmark = [pytest.mark.e2e, needs_torch]


def line_of(cause: str) -> int:
    return next(i for i, text in enumerate(JOB.read_text().splitlines(), 1) if text.endswith(f"# CAUSE {cause}"))


def run(flatout: str, python: str, folder: Path, *words: str, timeout: float = 300) -> dict:
    """`flatout run -- python ranks.py words`: what it found, with "code" and "said"."""
    done = subprocess.run([flatout, "run", "--out", str(folder), "--", python, str(JOB), *words],
                          capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, cwd=folder.parent)
    found = json.loads((folder / "findings.json").read_text())
    return {**found, "code": done.returncode, "said": done.stderr}


def straggler(found: dict) -> dict | None:
    return next((f for f in found["findings"] if f["id"] == "dist.straggler"), None)


def skip_if_disturbed(found: dict) -> None:
    """Where other programs take the cores that is a true finding, and drowns the injected one."""
    if any("cpu.noisy_neighbour" in rank["findings"] for rank in found["ranks"]):
        pytest.skip("lacks a quiet machine: programs outside the job took the cores")


# ---- one recorder for all ranks ----


def test_the_late_rank_and_its_own_cause_are_named(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "decode")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    late = straggler(found)
    assert late, (found["verdict"], found.get("ranks"))
    assert [r["rank"] for r in found["ranks"] if r["late"]] == [1]
    assert late["title"].startswith("Rank 1 holds up the others")
    # What the gain says is what the others wait for.
    job = found["job"]
    assert late["cost_ms_per_step"] <= found["ranks"][0]["waiting_ms"] * 1.1
    assert late["gain"] == pytest.approx(job["step_ms"] / (job["step_ms"] - late["cost_ms_per_step"]), rel=0.01)
    assert late["where"]["line"] == line_of("decode"), late


def test_balanced_ranks_have_no_straggler(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert straggler(found) is None, found["findings"]
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert found["job"]["common_steps"] > 100
    assert not any(r["late"] for r in found["ranks"])


def test_a_stopped_rank_is_named_as_missing(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "stop")
    assert found["verdict"] == "stall.hang", found
    assert found["findings"][0]["title"].startswith("Rank 1 is missing")
    assert [e["value"] for e in found["findings"][0]["evidence"] if e["unit"] == "rank"] == [1]
    assert found["ranks"][1]["state"] == "stopped"


def test_a_rank_that_has_fewer_steps_is_named_as_missing(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "fewer", "--steps", "70")
    assert found["verdict"] == "stall.hang", found
    assert found["findings"][0]["title"].startswith("Rank 1 is missing")


def test_a_killed_rank_is_named_and_not_those_that_miss_it(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "kill")
    assert found["verdict"] == "crash.signal", found
    assert found["findings"][0]["title"].startswith("Rank 1:")
    assert found["code"] != 0


# ---- launchers, both ways ----


def torchrun(python: str, *words: str) -> list[str]:
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *words]


def test_below_torchrun_rank_0_speaks_for_all(flatout, job_python, tmp_path):
    words = torchrun(job_python, "--no-python", flatout, "run", "--", job_python, str(JOB), "--cause", "decode")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(p for p in (tmp_path / "flatout-runs").iterdir() if p.is_dir() and not p.is_symlink())
    assert len(folders) == 2
    first, second = sorted(folders, key=lambda p: json.loads((p / "rank.json").read_text())["rank"])
    assert (tmp_path / "flatout-runs" / "latest").resolve() == first.resolve()
    found = json.loads((first / "findings.json").read_text())
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert done.stderr.count("report.html") == 1, "one report for all ranks"
    # The other rank is no neighbour of this one.
    for folder in folders:
        names = [n["pid"] for n in json.loads((folder / "run.json").read_text())["neighbours"]]
        assert not {r["pid"] for r in found["ranks"]} & set(names)
    # The same afterwards, from the folders.
    merged = subprocess.run([flatout, "merge", "--json", str(tmp_path / "flatout-runs"), "-o", str(tmp_path / "job")],
                            capture_output=True, text=True, timeout=60)
    assert merged.returncode == 0, merged.stderr
    again = json.loads(merged.stdout)
    assert again["verdict"] == found["verdict"]
    assert [r["own_ms"] for r in again["ranks"]] == [r["own_ms"] for r in found["ranks"]]
    assert json.loads((tmp_path / "job" / "findings.json").read_text()) == again
    assert 'id="ranks"' in (tmp_path / "job" / "report.html").read_text()


def test_around_torchrun_all_ranks_are_in_one_recording(flatout, job_python, tmp_path):
    words = [flatout, "run", "--out", str(tmp_path / "run"), "--", *torchrun(job_python, str(JOB))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert [r["steps"] for r in found["ranks"]] == [120, 120]


# ---- flatout merge ----


def test_merge_says_what_it_lacks(flatout, tmp_path):
    done = subprocess.run([flatout, "merge", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no run folder" in done.stderr and "flatout-runs/*-r*" in done.stderr
    assert subprocess.run([flatout, "merge"], capture_output=True).returncode == 2

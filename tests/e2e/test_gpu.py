"""What holds a GPU back, found live on a simulated one (tests/gpu): each cause, and what only looks like it.

The job, the driver, CUPTI and NVML are stand-ins; the agent, the recorder and the doctor are the real ones.
Lengths of time are not asserted: what the simulated device does is given, and shares of it are far apart.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "gpu" / "train.cpp"
GIB = 1 << 30
CARD = {"name": "Simulated", "uuid": "GPU-00000000-0000-0000-0000-000000000001", "util": 97, "mem_util": 20, "mem_total": 64 * GIB,
        "mem_used": 0, "clock_sm": 1800, "clock_sm_max": 1800, "clock_mem": 2000, "power": 300000, "power_limit": 400000,
        "temperature": 60, "throttle": 0, "ecc": 0, "multiprocessors": 108}
HOT = {"clock_sm": 900, "temperature": 93, "throttle": 0x40}
OTHER_PID = os.getpid()  # lives, and is not of the job

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="session")
def sim(flatout) -> Path:
    found = Path(flatout).resolve().parent / "gpu_sim"
    if not (found / "gpu_train").exists():
        pytest.skip("lacks the simulated GPU: build gpu_train, sim_cuda and sim_cupti")
    return found


def line_of(cause: str) -> int:
    return next(i for i, text in enumerate(SOURCE.read_text().splitlines(), 1) if text.endswith(f"// CAUSE {cause}"))


def run(flatout: str, sim: Path, folder: Path, cause: str, seconds: float = 2, card: dict | None = None, **env: str) -> dict:
    """`flatout run -- gpu_train CAUSE` on a card that is described so; what it found, with "code" and "said"."""
    script = folder / "card"
    lines = ["devices 1", "driver 580.00", "cuda 13000", *(f"0 {key} {value}" for key, value in {**CARD, **(card or {})}.items())]
    script.write_text("\n".join(lines) + "\n")
    libraries = f"{sim}:{sim.parent / 'nvml_stand_in'}"
    done = subprocess.run([flatout, "run", "--cupti", "--out", str(folder / "run"), "--", str(sim / "gpu_train"), cause, str(seconds)],
                          capture_output=True, text=True, timeout=120, cwd=folder,
                          env={**os.environ, "LD_LIBRARY_PATH": libraries, "NVML_STAND_IN": str(script), **env})
    found = json.loads((folder / "run" / "findings.json").read_text())
    return {**found, "code": done.returncode, "said": done.stderr}


def ids(found: dict) -> list[str]:
    return [f["id"] for f in found["findings"]]


def finding(found: dict, name: str) -> dict:
    assert name in ids(found), (found["verdict"], found.get("devices"), ids(found), found["said"])
    return next(f for f in found["findings"] if f["id"] == name)


def skip_if_disturbed(found: dict) -> None:
    """A host that has no core for itself launches late, and that is what is found then."""
    if "cpu.noisy_neighbour" in ids(found):
        pytest.skip("lacks a quiet machine: programs outside the job took the cores")


SLOW = [("launch", {}, "gpu.launch_bound", "work"), ("sync", {}, "gpu.sync", "sync"), ("pageable", {}, "input.h2d_sync", "pageable"),
        ("no_overlap", {}, "gpu.no_overlap", None), ("round_trip", {}, "gpu.wrong_device", "work"),
        ("narrow", {}, "gpu.small_batch", None), ("norm", {}, "gpu.unfused_norm", None), ("none", HOT, "gpu.throttled", None)]


@pytest.mark.parametrize("cause, card, name, line", SLOW, ids=[name for _, _, name, _ in SLOW])
def test_what_slows_the_device_down_is_named(flatout, sim, tmp_path, cause, card, name, line):
    found = run(flatout, sim, tmp_path, cause, card=card)
    assert found["code"] == 0, found["said"]
    assert finding(found, name)["gain"] > 1.05
    skip_if_disturbed(found)
    assert ids(found)[0] == name, (ids(found), found["devices"])
    if line is not None:
        assert finding(found, name)["where"]["line"] == line_of(line)


# The cause that each looks like is not found: a queue that stays full, labels and weights from pageable memory, a copy on its own stream, a
# clock that the user has set.
ALIKE = [("launch_hidden", {}), ("sync_once", {}), ("pageable_little", {}), ("pageable_once", {}), ("overlap", {}), ("narrow_few", {}), ("narrow_full", {}), ("norm_little", {}),
         ("none", {**HOT, "throttle": 2}), ("needs_56", {"process_1": f"{OTHER_PID} {4 * GIB}"})]


@pytest.mark.parametrize("cause, card", ALIKE, ids=[cause for cause, _ in ALIKE])
def test_what_only_looks_like_it_is_not(flatout, sim, tmp_path, cause, card):
    found = run(flatout, sim, tmp_path, cause, 1.5, card)
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert not [name for name in ids(found) if name.startswith("gpu.") or name == "input.h2d_sync"], (ids(found), found["devices"])
    assert found["devices"][0]["busy"] > 0.5, found["devices"]  # 0.9 and more where nobody else wants the cores


def test_a_device_that_waits_for_input_says_so(flatout, sim, tmp_path):
    found = run(flatout, sim, tmp_path, "slow_input")
    skip_if_disturbed(found)
    device = found["devices"][0]
    assert device["idle"]["input"] > 0.3 and device["idle"]["input"] > 5 * device["idle"]["sync"], device
    assert not [name for name in ids(found) if name.startswith("gpu.")], ids(found)


FATAL = [("needs_8", {"process_1": f"{OTHER_PID} {60 * GIB}"}, "gpu.memory_taken"), ("needs_80", {}, "gpu.oom_too_big"),
         ("pieces", {}, "gpu.oom_fragmented"), ("none", {"lost_after": 2000}, "gpu.lost"), ("gives_up", {}, "crash.exception")]


@pytest.mark.parametrize("cause, card, name", FATAL, ids=[name for _, _, name in FATAL])
def test_what_ended_the_job_is_named(flatout, sim, tmp_path, cause, card, name):
    found = run(flatout, sim, tmp_path, cause, card=card)
    assert found["code"] != 0
    assert found["verdict"] == name, (ids(found), found["findings"][:1])
    if name == "gpu.memory_taken":
        assert f"(pid {OTHER_PID})" in json.dumps(found["findings"][0]["evidence"])


@pytest.mark.parametrize("mode, why", [("taken", "another tool"), ("refuses", "error 35"), ("drops", "drops records")])
def test_where_cupti_tells_nothing_the_job_goes_on_and_the_run_says_why(flatout, sim, tmp_path, mode, why):
    found = run(flatout, sim, tmp_path, "none", 1, SIM_CUPTI=mode)
    assert found["code"] == 0 and found["devices"] == [], found["said"]
    assert [m for m in found["missing"] if m["signal"] == "gpu.device_time" and why in m["reason"]], found["missing"]


def test_a_cupti_that_hangs_does_not_hold_up_the_jobs_end(flatout, sim, tmp_path):
    assert run(flatout, sim, tmp_path, "none", 1, SIM_CUPTI="hangs")["code"] == 0

"""What only a card can show: the doctor's device times against torch.profiler's own, on real models."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[1] / "jobs" / "card.py"
pytestmark = [pytest.mark.parallel, pytest.mark.e2e, pytest.mark.gpu]


def train(before: list[str], python: str, *words: str) -> None:
    done = subprocess.run([*before, python, str(JOB), *words], capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip("lacks a graphics card")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiled", [[], ["--compile"]], ids=["eager", "compiled"])
@pytest.mark.parametrize("model", ["resnet50", "transformer"])
def test_busy_is_what_torch_profiler_sees(flatout, job_python, tmp_path, model, compiled):
    words = ["--model", model, "--steps", "240", *compiled]
    trace = tmp_path / "trace.json"
    train([], job_python, *words, "--profile", str(trace))
    train([flatout, "run", "--quiet", "--cupti", "--out", str(tmp_path / "run"), "--"], job_python, *words)
    summary = subprocess.run([flatout, "trace", "summary", str(trace), "--json"], capture_output=True, text=True, check=True)
    (profiled,) = json.loads(summary.stdout)["traces"].values()
    profiled = next(iter(profiled["devices"].values()))
    (device,) = json.loads((tmp_path / "run" / "findings.json").read_text())["devices"]
    assert device["kernels"] > 0
    assert abs(device["busy"] - profiled["busy_us"] / profiled["span_us"]) <= 0.01
    assert device["busy"] + sum(device["idle"].values()) == pytest.approx(1, abs=0.001)


def test_the_job_itself_without_a_card(job_python, tmp_path):
    """The script is tried here, on the CPU, so that it is right where a card is lent."""
    trace = tmp_path / "trace.json"
    for model in ("resnet50", "transformer"):
        words = ["--device", "cpu", "--model", model, "--steps", "3", "--batch", "1", "--profile", str(trace)]
        done = subprocess.run([job_python, str(JOB), *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["steps"] == 3
        assert json.loads(trace.read_text())["traceEvents"]

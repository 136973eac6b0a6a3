"""Steps and their breakdown, against what the loops of step_jobs.py measured themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]

JOBS = Path(__file__).parent / "step_jobs.py"
NAMES = {"input": "input_wait"}

# Loops whose parts hooks tell, and loops where readings of the stacks have to: these are sampled.
TOLD = ["loader_workers", "loader_inline", "epochs", "feeder_thread", "gan", "accumulation",
        "validation", "in_thread", "thread_per_epoch", "lbfgs", "logging_loop"]
READ = ["generator", "plain_loop", "functional"]


def record(shape: str, flatout: str, python: str, folder: Path) -> tuple[dict, dict]:
    """Runs the loop under flatout; what it measured and what flatout found."""
    truth = folder / "truth.json"
    command = [flatout, "run", "--out", str(folder / "run"), "--", python, str(JOBS), shape, str(truth)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(truth.read_text()), json.loads((folder / "run" / "findings.json").read_text())


def differences(truth: dict, found: dict, tolerance: float, untold: tuple[str, ...] = ()) -> list[str]:
    wrong = []
    shares = truth["shares"]
    for part, share in shares.items():
        if part in untold:
            continue
        name = NAMES.get(part, part)
        seen = found["breakdown"].get(name, 0.0)
        if abs(seen - share) > tolerance:
            wrong.append(f"{name}: {seen:.3f} instead of {share:.3f}")
    median = found["steps"]["median_ms"]
    if abs(median - truth["step_ms"]) > 0.15 * truth["step_ms"]:
        wrong.append(f"median {median:.2f} ms instead of {truth['step_ms']:.2f} ms")
    return wrong


@pytest.mark.parametrize("shape", TOLD)
def test_hooks_tell_the_breakdown(shape: str, flatout: str, job_python: str, tmp_path: Path) -> None:
    truth, found = record(shape, flatout, job_python, tmp_path)
    assert abs(found["steps"]["count"] - truth["steps"]) <= 1
    # What LBFGS does between its closures is told as "other": the hook sees where they end only.
    untold = ("optimizer",) if shape == "lbfgs" else ()
    assert not differences(truth, found, 0.06, untold), found["breakdown"]


@pytest.mark.parametrize("shape", READ)
def test_stacks_tell_input_from_forward(shape: str, flatout: str, job_python: str, tmp_path: Path) -> None:
    truth, found = record(shape, flatout, job_python, tmp_path)
    assert abs(found["steps"]["count"] - truth["steps"]) <= 1
    assert not differences(truth, found, 0.12), found["breakdown"]


def test_repetition_tells_steps_where_no_hook_fits(flatout: str, job_python: str, tmp_path: Path) -> None:
    truth, found = record("numpy_loop", flatout, job_python, tmp_path)
    assert found["steps"]["count"] >= truth["steps"] // 2
    assert abs(found["steps"]["median_ms"] - truth["step_ms"]) < 0.25 * truth["step_ms"]


def test_counted_rounds_tell_steps_shorter_than_a_reading(flatout: str, job_python: str, tmp_path: Path) -> None:
    truth, found = record("numpy_short", flatout, job_python, tmp_path)
    # Those of the first moments and the very last ones lie outside of the readings.
    assert 0.7 * truth["steps"] < found["steps"]["count"] <= truth["steps"]
    # Rounds between two readings are taken to be equally long, and how far apart these are depends on the machine.
    usual = [truth["step_ms"], *truth["even_ms"].values()]
    assert 0.9 * min(usual) < found["steps"]["median_ms"] < 1.1 * max(usual)


UNMARKED = """
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <time.h>
static volatile double sum = 0;
static double part;
__attribute__((noinline)) static void busy(double ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(ms);
  while (std::chrono::steady_clock::now() < until) for (int i = 0; i < 100; ++i) sum = sum + i;
}
__attribute__((noinline)) static void forward() { busy(part); }
__attribute__((noinline)) static void backward() { busy(part); }
__attribute__((noinline)) static void fetch() { const timespec t{0, static_cast<long>(part * 1e6)}; nanosleep(&t, nullptr); }
int main(int, char** arguments) {
  part = std::atof(arguments[1]);
  const int rounds = std::atoi(arguments[2]);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) { fetch(); forward(); backward(); }
  std::printf("%f", std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / rounds);
}
"""


@pytest.mark.parametrize("part_ms, rounds", [(60, 60), (3, 1000), (0.4, 6000)], ids=["long", "short", "in_windows"])
def test_repetition_tells_steps_of_cpp_without_markers(flatout: str, tmp_path: Path, part_ms: float, rounds: int) -> None:
    if shutil.which("g++") is None:
        pytest.skip("lacks g++")
    (tmp_path / "job.cpp").write_text(UNMARKED)
    subprocess.run(["g++", "-O1", "-g", "-o", "job", "job.cpp"], cwd=tmp_path, check=True)
    command = [flatout, "run", "--quiet", "--out", "run", "--", "./job", str(part_ms), str(rounds)]
    done = subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True)
    step_ms = float(done.stdout)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    missing = json.loads((tmp_path / "run" / "run.json").read_text())["missing"]
    if part_ms < 60 and "loop.rounds" in [signal["signal"] for signal in missing]:
        pytest.skip("lacks hardware breakpoints")
    assert 0.5 * rounds <= found["steps"]["count"] <= 1.02 * rounds
    assert abs(found["steps"]["median_ms"] - step_ms) < 0.25 * step_ms
    assert "stall.idle_wait" in [f["id"] for f in found["findings"]]

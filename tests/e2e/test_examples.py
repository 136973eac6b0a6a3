"""The examples get the verdicts that they promise, at their own lines, and none when fixed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def verdict(flatout, folder: Path, *command: str) -> dict:
    done = subprocess.run([flatout, "run", "--out", str(folder), "--", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "findings.json").read_text())


def promised(example: Path) -> str:
    return re.search(r"Flatout says: ([a-z_0-9]+\.[a-z_0-9]+)", example.read_text()).group(1)


@pytest.mark.parametrize("name", ["slow_input", "tiny_operations", "blocking_saves", "kept_outputs"])
def test_an_example_gets_its_verdict_and_its_line(name, flatout, job_python, tmp_path):
    example = EXAMPLES / f"{name}.py"
    found = verdict(flatout, tmp_path / "run", job_python, str(example))
    assert found["verdict"] == promised(example)
    assert found["findings"][0]["where"]["file"].endswith(example.name)
    fixed = verdict(flatout, tmp_path / "fixed", job_python, str(example), "--fixed")
    assert promised(example) not in [f["id"] for f in fixed["findings"]]


def test_the_example_in_cpp_compiles_and_gets_its_verdict(flatout, tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("lacks a C++ compiler")
    job = tmp_path / "marked_steps"
    source = EXAMPLES / "marked_steps.cpp"
    subprocess.run([compiler, "-O2", "-std=c++17", f"-I{EXAMPLES.parent / 'include'}", str(source), "-pthread",
                    "-ldl", "-o", str(job)], check=True)
    found = verdict(flatout, tmp_path / "run", str(job))
    assert found["verdict"] == promised(source)
    fixed = verdict(flatout, tmp_path / "fixed", str(job), "--fixed")
    assert promised(source) not in [f["id"] for f in fixed["findings"]]

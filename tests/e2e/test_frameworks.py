"""Real Lightning and a real Hugging Face Trainer: every step is seen, and the user's line is named."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e]

JOB = Path(__file__).parent / "framework_jobs.py"
STEPS = 120


@pytest.mark.parametrize("kind, package", [("lightning", "lightning"), ("huggingface", "transformers")])
def test_steps_and_cause_in_a_framework(kind: str, package: str, flatout: str, job_python: str, tmp_path: Path) -> None:
    if subprocess.run([job_python, "-c", f"import {package}"], capture_output=True).returncode != 0:
        pytest.skip(f"lacks {package}")
    done = subprocess.run([flatout, "run", "--quiet", "--out", "run", "--", job_python, str(JOB), kind, str(STEPS), "6"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=180, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert f"steps {STEPS}" in done.stdout
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert found["steps"]["count"] == STEPS
    cause = next((f for f in found["findings"] if f["id"] == "input.decode_cpu"), None)
    assert cause is not None, found["findings"]
    assert cause["where"]["file"] == str(JOB)
    assert "# CAUSE" in JOB.read_text().splitlines()[cause["where"]["line"] - 1]
    assert found["breakdown"]["input_wait"] > 0.5

"""Runs a script with remedies of flatout fix in force, as a trial does, and no flatout around."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Set, Tuple

INJECT = Path(__file__).resolve().parents[2] / "python" / "flatout" / "agent" / "inject"


def changed(job_python: str, remedies: str, script: str, folder: Path, **variables: str) -> Tuple[str, Set[str]]:
    """What the script prints, and the names of the remedies that took effect in it."""
    env = {**os.environ, "FLATOUT_REMEDIES": remedies, "PYTHONPATH": str(INJECT), "FLATOUT_TRIAL": str(folder), **variables}
    applied = folder / "applied"
    applied.unlink(missing_ok=True)
    done = subprocess.run([job_python, "-c", textwrap.dedent(script)], env=env, cwd=folder, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "flatout" not in done.stderr, done.stderr
    return done.stdout, set(applied.read_text().split()) if applied.exists() else set()

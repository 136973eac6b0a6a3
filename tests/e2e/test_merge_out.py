"""flatout merge -o writes over what it wrote itself, and over nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.parallel]


@pytest.mark.parametrize("name", ["findings.json", "report.html", "trace.json.gz", "merge.json"])
def test_somebody_elses_file_is_left_alone(flatout: str, tmp_path: Path, name: str) -> None:
    for rank in "01":
        subprocess.run([flatout, "run", "--quiet", "--out", f"r{rank}", "--", "sleep", "0.2"], cwd=tmp_path, check=True,
                       env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"})
    merge = [flatout, "merge", "r0", "r1", "-o", "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    done = subprocess.run(merge, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"out/{name}" in done.stderr, done.stderr
    assert {p.name: p.read_text() for p in (tmp_path / "out").iterdir()} == {name: "mine"}
    (tmp_path / "out" / name).unlink()
    for _ in range(2):
        assert subprocess.run(merge, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "out" / "merge.json").exists()

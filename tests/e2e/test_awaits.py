"""Jobs that train inside of asyncio: the verdict names the line that waits, not the one that runs the event loop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]

JOB = """
import asyncio, sys
import torch

async def fetch():
    {wait}
    return torch.randn(16, 64)

async def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    answers = asyncio.Queue()
    async def pump():
        while True:
            await asyncio.sleep(0.03)
            await answers.put(torch.randn(16, 64))
    pumping = asyncio.create_task(pump())
    for _ in range(60):
        {batch}
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

asyncio.run(main())
"""
QUICK, SLOW = "await asyncio.sleep(0)", "await asyncio.sleep(0.03)  # CAUSE"


@pytest.mark.parametrize("wait, batch", [
    (SLOW, "x = await fetch()"),
    (SLOW, "x = await asyncio.create_task(fetch())"),
    (SLOW, "x, _ = await asyncio.gather(fetch(), fetch())  # OUTSIDE"),
    (QUICK, "x = await answers.get()  # CAUSE"),
], ids=["coroutine", "task", "gather", "queue"])
def test_the_line_that_waits_is_named(wait: str, batch: str, flatout: str, job_python: str, tmp_path: Path) -> None:
    job = tmp_path / "train.py"
    job.write_text(JOB.format(wait=wait, batch=batch))
    done = subprocess.run([flatout, "run", "--quiet", "--out", "run", "--", job_python, str(job)], cwd=tmp_path, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert found["verdict"] == "stall.idle_wait", found["headline"]
    where = found["findings"][0]["where"]
    assert where["file"] == str(job)
    line = job.read_text().splitlines()[where["line"] - 1]
    # What several wait for side by side is none of them alone.
    assert ("# OUTSIDE" if "gather" in batch else "# CAUSE") in line

"""Whether the agent tells an Adam that could be fused on the CPU, and no other optimizer."""
import json
import subprocess

import pytest

JOB = '''
import sys
import torch
from torch import nn

first, second = nn.Linear(16, 16), nn.Linear(16, 4)


def make(kind):
    both = [*first.parameters(), *second.parameters()]
    if kind == "two":
        return [torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), lr=0.1)]
    if kind == "fused":
        return [torch.optim.AdamW(both, fused=True)]
    if kind == "unused":
        torch.optim.Adam(both)
        return [torch.optim.SGD(both, lr=0.1)]
    return [torch.optim.AdamW(both)]  # MADE


optimizers = make(sys.argv[1])
for _ in range(30):
    loss = second(first(torch.randn(8, 16))).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
'''


@pytest.mark.parametrize("kind", ["plain", "fused", "two", "unused"])
def test_an_adam_that_could_be_fused(flatout, job_python, tmp_path, kind):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    subprocess.run([flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--", job_python, str(job), kind],
                   check=True, timeout=120)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["facts"]
    if kind != "plain":
        assert facts.get("torch.optimizer", "") == ""
        return
    assert facts["torch.optimizer"] == "AdamW: 4 tensors, 340 elements"
    line = JOB.splitlines().index("    return [torch.optim.AdamW(both)]  # MADE") + 1
    assert facts["torch.optimizer.made_at"] == f"{job}:{line} in make"

"""What the agent says of a tracer that was left on, and of numbers too small for normal arithmetic."""
import json
import subprocess

import pytest

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]

TRAIN = """
import sys
import torch

{before}
net = torch.nn.Linear(64, 128)
sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
{state}
for step in range(25):
    net(torch.ones(4, 64)).mean().backward()
    sgd.step()
    sgd.zero_grad()
    {each}
"""


def facts_of(flatout, python, folder, before="", state="", each="pass"):
    script = folder / "train.py"
    script.write_text(TRAIN.format(before=before, state=state, each=each))
    done = subprocess.run([flatout, "run", "--quiet", "--out", str(folder / "run"), "--", python, str(script)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    facts = json.loads((folder / "run" / "run.json").read_text())["facts"]
    assert not any(key.startswith("agent.") for key in facts), facts
    return facts


def test_a_tracer_in_python_is_named_by_its_place(flatout, job_python, tmp_path):
    before = "def watch(frame, event, arg):\n    return None\n\n\nsys.settrace(watch)"
    assert facts_of(flatout, job_python, tmp_path, before)["python.tracer"] == f"{tmp_path}/train.py:5 in watch"


def test_a_profiler_in_c_is_named_by_its_type(flatout, job_python, tmp_path):
    facts = facts_of(flatout, job_python, tmp_path, "import cProfile\ncProfile.Profile().enable()")
    assert "rofile" in facts["python.profiler"] and not facts.get("python.tracer")


def test_without_either_nothing_is_said(flatout, job_python, tmp_path):
    facts = facts_of(flatout, job_python, tmp_path)
    assert not facts.keys() & {"python.tracer", "python.profiler", "denormals"}


@pytest.mark.parametrize("flushed", [False, True])
def test_tensors_that_decayed_are_counted_and_named(flatout, job_python, tmp_path, flushed):
    state = "net.state = torch.full((100, 100), 1e-40)\nkept = [{'a': torch.full((5000,), 1e-41)}]\nfew = torch.ones(9999)"
    before = f"torch.set_flush_denormal({flushed})"
    facts = facts_of(flatout, job_python, tmp_path, before, state, "net.state.mul_(1); kept[0]['a'].mul_(1)")
    if flushed:
        assert "denormals" not in facts
    else:
        assert facts["denormals"].startswith("15000 elements of 2 tensors, net.state, ")
        assert float(facts["denormals"].split()[-3]) < 1000  # ns


def test_data_that_stays_as_it_is_is_no_state(flatout, job_python, tmp_path):
    assert "denormals" not in facts_of(flatout, job_python, tmp_path, state="data = torch.full((100, 100), 1e-40)")


def test_a_mapped_file_that_is_not_in_memory_is_left_there(flatout, job_python, tmp_path):
    if subprocess.run(["stat", "-fc", "%T", tmp_path], capture_output=True, text=True).stdout.strip() == "tmpfs":
        pytest.skip("a file system in memory has nothing to leave")
    state = f"""
import os
with open({str(tmp_path / "data")!r}, "w+b") as f:
    f.write(torch.full((1000000,), 1e-41).numpy().tobytes())
    f.flush()
    os.fsync(f.fileno())
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
data = torch.from_file({str(tmp_path / "data")!r}, shared=True, size=1000000)
"""
    facts = facts_of(flatout, job_python, tmp_path, state=state)
    assert "denormals" not in facts

"""`flatout run --torch-profile`: PyTorch's own profiler over some steps of a job that knows nothing of it."""

import gzip
import json
import subprocess

import pytest

pytestmark = pytest.mark.parallel

JOB = """
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for i in range(60):
    loss = torch.nn.functional.cross_entropy(net(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(i, loss.item())
"""


def run(flatout, job_python, folder, *options):
    job = folder / "job.py"
    job.write_text(JOB)
    return subprocess.run([flatout, "run", *options, "--out", folder / "run", "--", job_python, job],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def losses(done):
    return [line for line in done.stdout.splitlines() if line[:1].isdigit()]


def test_just_those_steps_are_recorded(flatout, job_python, tmp_path):
    pytest.importorskip("torch")
    done = run(flatout, job_python, tmp_path, "--torch-profile", "20-25")
    assert done.returncode == 0, done.stderr
    trace = tmp_path / "run" / "torch_trace.json.gz"
    assert f"flatout trace summary {trace}" in done.stderr
    assert trace.stat().st_mode & 0o777 == 0o600
    summary = json.loads(subprocess.run([flatout, "trace", "summary", "--json", trace], capture_output=True,
                                        text=True, check=True).stdout)
    steps = next(iter(summary["traces"].values()))["steps"]
    assert [s["name"] for s in steps] == [f"ProfilerStep#{i}" for i in range(20, 26)]
    # Its cost is none of the job's: those steps are not judged.
    with gzip.open(tmp_path / "run" / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    ours = {e["args"]["index"]: e["args"] for e in events if e["name"].startswith("step ") and "index" in e["args"]}
    assert len(ours) == 60
    assert {20, 21, 22, 23, 24, 25} <= {i for i, args in ours.items() if args.get("after_gap")} <= set(range(19, 28))
    plain = tmp_path / "plain"
    plain.mkdir()
    assert losses(done) == losses(run(flatout, job_python, plain))


@pytest.mark.parametrize("steps", ["x", "5-3", "-2", "3-", "1-2-3"])
def test_what_names_no_steps_is_refused(flatout, job_python, tmp_path, steps):
    done = run(flatout, job_python, tmp_path, f"--torch-profile={steps}")
    assert done.returncode == 2
    assert "--torch-profile" in done.stderr and "20-25" in done.stderr
    assert not losses(done)


def test_a_job_that_ends_before_is_told(flatout, job_python, tmp_path):
    pytest.importorskip("torch")
    done = run(flatout, job_python, tmp_path, "--torch-profile", "500-510")
    assert done.returncode == 0
    assert "got past step 510" in done.stderr
    assert len(losses(done)) == 60


def test_a_profiler_of_the_jobs_own_goes_first(flatout, job_python, tmp_path):
    pytest.importorskip("torch")
    job = tmp_path / "own.py"
    job.write_text("import torch\nown = torch.profiler.profile()\nown.start()\n" + JOB + "own.stop()\nprint('own', len(own.events()) > 100)\n")
    done = subprocess.run([flatout, "run", "--torch-profile", "20-25", "--out", tmp_path / "run", "--", job_python, job],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "own True" in done.stdout
    assert "recorded nothing: RuntimeError: a profiler of the job's own is on" in done.stderr

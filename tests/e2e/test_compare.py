"""flatout compare: two runs of the same job, one slowed down by a known cause, which has to be named first."""

import json
import os
import subprocess

import pytest

import cases
from test_trainer import neighbours

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = "120"


def run(flatout, folder, *command, cwd=None, env=None):
    subprocess.run([flatout, "run", "--quiet", "--out", str(folder), "--", *map(str, command)], check=True, cwd=cwd, timeout=120,
                   stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def compared(flatout, old, new):
    return json.loads(subprocess.run([flatout, "compare", str(old), str(new), "--json"], check=True, capture_output=True).stdout)


OTHERS = {"cpu.noisy_neighbour", "others.cpu_cores", "neighbour"}


def reasons(comparison):
    """What stands beside the part that took most of the difference, likeliest first. Whoever else used the machine during one of
    the runs is a true reason of its own, and no test's subject but one's."""
    named = [reason.get("finding") or reason["change"] for reason in comparison["parts"][0]["reasons"]]
    return [reason for reason in named if reason not in OTHERS]


@pytest.fixture(scope="module")
def healthy(flatout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "healthy"
    run(flatout, folder, flatout, "train", "--steps", STEPS)
    return folder


SLOWER = {  # cause -> the part that takes the time, and how many steps are enough
    "input.decode_cpu": ("input_wait", 60),
    "mem.page_faults": ("forward", 60),
    "stall.checkpoint": ("checkpoint", 120),
    "stall.idle_wait": ("other", 60),
}


@pytest.mark.parametrize("cause", SLOWER)
def test_the_injected_cause_and_its_part_are_named_first(flatout, tmp_path, healthy, cause):
    part, steps = SLOWER[cause]
    run(flatout, tmp_path / "new", flatout, "train", "--steps", steps, "--inject", cause)
    slower = compared(flatout, healthy, tmp_path / "new")
    assert slower["verdict"] == "slower" and slower["difference_low_ms"] > 0
    assert slower["parts"][0]["part"] == part, slower["parts"]
    assert reasons(slower)[0] == cause, slower["parts"][0]
    for side in ("old", "new"):
        assert slower[side]["median_low_ms"] <= slower[side]["median_ms"] <= slower[side]["median_high_ms"]
    back = compared(flatout, tmp_path / "new", healthy)
    assert (back["verdict"], back["parts"][0]["part"]) == ("faster", part)
    assert reasons(back)[0] == cause


def test_the_gate_lets_noise_through_and_nothing_slower(flatout, tmp_path, healthy):
    run(flatout, tmp_path / "slow", flatout, "train", "--steps", STEPS, "--inject", "stall.idle_wait")

    def gate(old, new):
        return subprocess.run([flatout, "compare", str(old), str(new), "--fail-on", "slower=5%"], capture_output=True).returncode

    assert gate(healthy, tmp_path / "slow") == 3
    assert gate(tmp_path / "slow", healthy) == 0
    assert gate(healthy, healthy) == 0


def test_neighbours_of_today_are_named(flatout, tmp_path, healthy):
    with neighbours(flatout, "cpu.noisy_neighbour"):
        run(flatout, tmp_path / "new", flatout, "train", "--steps", STEPS)
    slower = compared(flatout, healthy, tmp_path / "new")
    if slower["verdict"] != "slower":  # others of this machine may have slowed the first run down, too
        run(flatout, tmp_path / "old", flatout, "train", "--steps", STEPS)
        slower = compared(flatout, tmp_path / "old", tmp_path / "new")
    assert slower["verdict"] == "slower"
    assert slower["parts"][0]["reasons"][0]["finding"] == "cpu.noisy_neighbour", slower["headline"]
    assert any(c["what"] in ("neighbour", "others.cpu_cores") for c in slower["changes"]), slower["changes"]


TRAIN = """
import torch
import settings

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(60):
    sgd.zero_grad()
    net(torch.randn(settings.BATCH, 256)).square().mean().backward()
    sgd.step()
"""


def test_an_edited_module_is_named_where_the_commit_is_the_same(flatout, tmp_path, job_python):
    code = tmp_path / "code"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "__init__.py").touch()
    (code / "pkg" / "train.py").write_text(TRAIN.replace("import settings", "from pkg import settings"))
    for name, batch in (("old", 512), ("new", 4096)):
        (code / "pkg" / "settings.py").write_text(f"BATCH = {batch}\n")
        run(flatout, tmp_path / name, job_python, "-m", "pkg.train", cwd=code)
    slower = compared(flatout, tmp_path / "old", tmp_path / "new")
    assert slower["verdict"] == "slower"
    assert "code.hash.settings.py" in reasons(slower), slower
    assert [c["what"] for c in slower["changes"] if c["what"].startswith("code.")] == ["code.hash.settings.py"]
    said = subprocess.run([flatout, "compare", str(tmp_path / "old"), str(tmp_path / "new")], capture_output=True, text=True, check=True).stdout
    assert "code in settings.py" in said
    facts = json.loads((tmp_path / "new" / "run.json").read_text())["facts"]
    assert facts["code.file"] == str(code / "pkg" / "train.py")
    wanted = subprocess.run([job_python, "-c", "from importlib.metadata import version; print(version('numpy'), version('torch'))"], capture_output=True, text=True, check=True)
    assert [facts["package.numpy"], facts["package.torch"]] == wanted.stdout.split()


def test_two_runs_of_the_same_differ_in_nothing_that_is_told(flatout, tmp_path, job_python):
    """Whatever differs between any two runs is no change: the screen has none of it."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "settings.py").write_text("BATCH = 512\n")
    (code / "train.py").write_text(TRAIN)
    for name in ("old", "new"):
        run(flatout, tmp_path / name, job_python, "train.py", cwd=code)
    facts = [c["what"] for c in compared(flatout, tmp_path / "old", tmp_path / "new")["changes"]]
    measured = {"others.cpu_cores", "neighbour", "storage.read_bytes_per_step", "cpu.frequency_hz", "gc", "memory.reclaim", "torch.graph_nodes"}
    assert not set(facts) - measured, facts


REAL = {"many_tiny_files": (), "collect_each_step": (), "slow_saves": ("--every", "1")}  # each costs several times the step


@pytest.mark.parametrize("name", REAL)
def test_the_cause_of_a_real_job_is_named_first(flatout, tmp_path, job_python, name):
    """Yesterday without the cause, today with it; nothing else differs."""
    case = next(c for c in cases.CASES if c.name == name)
    for folder, more in (("old", ["--fixed"]), ("new", REAL[name])):
        run(flatout, tmp_path / folder, job_python, case.path, *case.args, *more)
    slower = compared(flatout, tmp_path / "old", tmp_path / "new")
    assert slower["verdict"] == "slower"
    assert reasons(slower)[0] == case.expect, slower["parts"][0]
    assert "command" in [c["what"] for c in slower["changes"]]

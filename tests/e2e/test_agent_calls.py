"""What the Python agent's hooks are made of, in the Pythons there are, and as a job's only path."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import interpreters
import receiver
import test_agent

HERE = pathlib.Path(__file__).resolve().parent
CALLS = str(HERE / "agent_calls.py")
AGENT = test_agent.AGENT
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(AGENT is None, reason="libflatout_agent.so is not built")]

NAMES = ["this"] + ["3.%d%s" % (n, t) for n in range(8, 16) for t in ("", "t") if n > 12 or not t]


@pytest.mark.parametrize("calls", ["builtin", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_calls_do_as_what_they_stand_for(name, calls):
    python = sys.executable if name == "this" else interpreters.path_of(name)
    if python is None:
        pytest.skip("no CPython %s here" % name)
    r, done = receiver.run([python, CALLS, calls], AGENT, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    said, pid = done.stdout.decode().split()
    pid = int(pid)
    assert said == "ok" and r.dropped() == 0
    mine = [s for s in r.slices if s.pid == pid]
    assert [(s.name, s.value) for s in mine if s.kind == "sync"] == [("a name", 0)]
    steps = [(s.value, s.value2) for s in mine if s.kind == "optimizer"]
    assert steps[:6] == [(0, 1), (1, 1), (0, 2), (0, 3), (0, 3), (0, 4)]
    with_closure = [s for s in mine if s.kind == "optimizer"][3]
    inside = [s for s in mine if s.kind == "backward" and with_closure.begin <= s.begin <= with_closure.end]
    assert len(inside) == 3
    passes = [(s.kind, s.value) for s in mine if s.kind in ("forward", "validation")]
    assert passes[:8] == [("forward", 0)] * 4 + [("validation", 0), ("validation", 1), ("validation", 1), ("forward", 0)]
    waits = [s for s in mine if s.kind == "input_wait" and s.name == "a name"]
    assert [s.value for s in waits] == [0, 1]  # the second in vain
    assert all(s.end - s.begin >= 1000000 for s in waits)
    assert [s.value for s in mine if s.kind == "epoch"] == [1]
    sample, fetch = (next(s for s in mine if s.kind == kind) for kind in ("sample", "fetch"))
    assert sample.value == 2 and sample.value2 >= sample.end - sample.begin >= 1000000
    assert fetch.begin <= sample.begin <= sample.end <= fetch.end and (fetch.value, fetch.value2) == (3, 0)
    assert [s.value for s in mine if s.kind == "collate"][:5] == [80, 40, 40, 40, 0]
    assert any((s.kind, s.begin, s.end, s.value, s.value2) == ("phase", 5, 9, 3, 4) for s in mine)
    threads = {s.tid for s in mine if s.kind == "phase"}
    assert len(threads) == 4 and sum(s.kind == "phase" for s in mine if s.tid != pid) == 6000
    assert sum(s.kind == "phase" for s in r.slices if s.pid != pid) == 2000
    hooks, total, most, _ = (sum(c) for c in zip(*r.costs[pid]))
    assert hooks > 6000 and 0 < most <= total


def test_a_job_without_builtins_is_seen_all_the_same(tmp_path):
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip("this Python has no torch")
    start = tmp_path / "start.py"
    start.write_text(
        "import importlib.util, runpy, sys\n"
        "spec = importlib.util.spec_from_file_location('_flatout_agent.core', %r)\n"
        "core = importlib.util.module_from_spec(spec)\n"
        "sys.modules['_flatout_agent.core'] = core\n"
        "spec.loader.exec_module(core)\n"
        "core._OBJECT_SIZE = 0\n"
        "sys.argv[1:] = ['plain', '2']\n"
        "runpy.run_path(%r, run_name='__main__')\n" % (
            str(test_agent.ROOT / "python" / "flatout" / "agent" / "core.py"), test_agent.JOBS))
    r, done = receiver.run([sys.executable, str(start)], AGENT, timeout=300)
    assert done.stdout == test_agent.without_agent("plain", "2").stdout
    assert any(facts.get("agent.calls") == "plain" for facts in r.facts.values())
    n = test_agent.counts(r)
    assert n["optimizer"] == n["backward"] == n["forward"] == n["zero_grad"] == 16
    assert n["fetch"] == n["collate"] == n["sample"] == 2 * 8 + 2 * 2

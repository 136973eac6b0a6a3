"""The Python agent in real jobs, without the recorder: what it sees, and that it changes nothing."""
import ast
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import receiver

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
JOBS = str(HERE / "agent_jobs.py")


def find_agent():
    program = os.environ.get("FLATOUT_BIN")
    places = [pathlib.Path(program).parent] if program else []
    places += sorted((ROOT / "build").glob("*/"))
    for place in places:
        if (place / "libflatout_agent.so").exists():
            return str(place / "libflatout_agent.so")
    return None


AGENT = find_agent()
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(AGENT is None, reason="libflatout_agent.so is not built")]


@pytest.fixture(scope="module", autouse=True)
def torch_here():
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip("this Python has no torch")


def without_agent(*arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    return subprocess.run([sys.executable, JOBS, *arguments], env=env, capture_output=True)


def with_agent(*arguments, **more):
    return receiver.run([sys.executable, JOBS, *arguments], AGENT, timeout=300, **more)


def counts(r):
    found = {}
    for s in r.slices:
        found[s.kind] = found.get(s.kind, 0) + 1
    found.pop("gc", None)
    return found


def both(*arguments):
    """Runs the job without and with the agent: equal to the last bit, whatever it prints."""
    plain = without_agent(*arguments)
    r, done = with_agent(*arguments)
    assert done.returncode == plain.returncode, done.stderr.decode()
    assert done.stdout == plain.stdout
    assert b"flatout" not in done.stderr.replace(os.fsencode(str(ROOT)), b"")
    assert r.dropped() == 0
    assert not any("agent.off" in facts for facts in r.facts.values())
    return r


def main_thread(r):
    pids = {s.pid for s in r.of("optimizer")}
    assert len(pids) == 1
    return pids.pop()


# ---- the same results, and every step seen ----


@pytest.mark.parametrize("arguments", [
    ["plain", "0"], ["plain", "2"], ["plain", "2", "spawn"], ["plain", "2", "forkserver", "persistent"],
], ids=" ".join)
def test_a_loop_over_a_loader(arguments):
    r = both(*arguments)
    n = counts(r)
    workers = int(arguments[1])
    assert n["optimizer"] == n["backward"] == n["forward"] == n["zero_grad"] == 16
    assert n["validation"] == 4
    assert n["input_wait"] == 2 * (8 + 1) + 2 * (2 + 1)  # the end of an epoch is waited for, too
    assert n["epoch"] == 4
    assert n["fetch"] == n["collate"] == n["sample"] == 2 * 8 + 2 * 2
    pid = main_thread(r)
    in_workers = [s for s in r.of("fetch") if s.pid != pid]
    assert len(in_workers) == (16 if workers else 0)
    persistent = len(arguments) > 3
    assert n.get("worker", 0) == (workers if persistent else 2 * workers)
    if workers:
        assert sorted({s.value2 for s in in_workers}) == list(range(8))
        assert {s.value for s in r.of("worker")} == {0, 1}
        sent = [s for s in r.of("handover") if s.value2 >= 0]
        assert len(sent) >= 16 and all(s.value > 0 for s in sent)
        started = [s.value for s in r.of("loader_start") if s.value]
        assert started == ([2] if persistent else [2, 2])
    facts = r.facts[pid]
    assert facts["loader.num_workers"] == str(workers)
    assert facts["loader.batch_size"] == "8" and facts["loader.dataset_size"] == "64"
    assert int(facts["torch.num_threads"]) >= 1 and facts["torch.version"][0].isdigit()


def test_times_of_samples_lie_within_their_fetch():
    r = both("plain", "0")
    fetches, samples = r.of("fetch"), r.of("sample")
    for fetch, sample in zip(fetches, samples):
        assert fetch.begin <= sample.begin <= sample.end <= fetch.end
        assert sample.value2 >= sample.end - sample.begin and fetch.value == 8
    waits = r.of("input_wait")
    assert all(any(w.begin <= f.begin and f.end <= w.end for w in waits) for f in fetches)


def test_the_parts_of_a_step_follow_each_other():
    r = both("plain", "0")
    order = [s.kind for s in sorted(r.slices, key=lambda s: s.begin)
             if s.kind in ("input_wait", "zero_grad", "forward", "backward", "optimizer")]
    step = ["input_wait", "zero_grad", "forward", "backward", "optimizer"]
    assert order[:40] == step * 8
    assert [s.value2 for s in r.of("optimizer")] == list(range(1, 17))


@pytest.mark.shapes
@pytest.mark.parametrize("workers", ["0", "2"])
def test_iterable_data_sets(workers):
    n = counts(both("stream", workers))
    assert n["optimizer"] == 8 and n["fetch"] == 8 + 4 and n["epoch"] == 4


@pytest.mark.shapes
def test_data_sets_that_fetch_a_batch_in_one_call():
    n = counts(both("pairs", "2"))
    assert n["optimizer"] == 8 and n["fetch"] == 8 + 4 and n["sample"] == 4


@pytest.mark.parametrize("job, steps, backwards", [
    ("accumulate", 2, 8), ("scaler", 8, 8), ("lbfgs", 4, 12), ("huggingface", 8, 8),
    ("lightning", 8, 8), ("threaded", 16, 16), ("loop", 12, 12),
])
def test_loops_of_other_shapes(job, steps, backwards):
    r = both(job)
    n = counts(r)
    assert n["optimizer"] == steps and n["backward"] == backwards
    for step in r.of("optimizer"):  # one forward and backward in a closure are not the optimizer's
        inside = [b for b in r.of("backward") if step.begin < b.end <= step.end]
        assert len(inside) == (3 if job == "lbfgs" else 0)


def test_two_optimizers_are_told_apart():
    r = both("gan")
    assert [s.value for s in r.of("optimizer")] == [0, 1] * 8
    assert counts(r)["backward"] == 16


@pytest.mark.shapes
def test_a_model_that_is_never_called_itself_has_its_parts_hooked():
    assert counts(both("lightning"))["forward"] >= 4


@pytest.mark.parametrize("between, most", [("0", 3 + 1), ("0.02", 3 + 2)])
def test_many_layers_called_one_by_one_are_few_slices(between, most):
    """But no slice covers what the loop does for long between two of them."""
    r = both("layers", "12", "48", between)
    by_step, forwards = [], []
    for s in sorted(r.slices, key=lambda s: s.begin):
        if s.kind == "forward":
            forwards.append(s)
        elif s.kind == "zero_grad":
            assert all(f.end <= s.begin for f in forwards)
            by_step.append(len(forwards))
            forwards = []
    assert len(by_step) == 48
    assert statistics.mode(by_step[8:]) == most  # once the layers are found, and but for steps that the machine interrupts


@pytest.mark.shapes
def test_training_in_a_thread_is_that_threads():
    r = both("threaded")
    assert {s.tid for s in r.of("optimizer")} == {s.tid for s in r.of("backward")}
    assert {s.tid for s in r.of("optimizer")} != {main_thread(r)}


@pytest.mark.shapes
def test_batches_from_a_queue_are_input():
    r = both("feeder")
    waits = [s for s in r.of("input_wait") if s.name == "Queue.get"]
    assert len(waits) >= 10
    assert {s.tid for s in waits} == {main_thread(r)}


@pytest.mark.shapes
@pytest.mark.parametrize("job", ["compiled", "compiled_step"])
def test_torch_compile_traces_as_without_us(job):
    n = counts(both(job))  # prints the number of graphs and of graph breaks, too
    assert n["optimizer"] == n["backward"] == 8


@pytest.mark.shapes
def test_tracing_by_fx_and_torchscript_is_as_without_us():
    both("traced")


@pytest.mark.shapes
def test_what_a_program_may_look_at_is_as_without_us():
    both("looks")


@pytest.mark.shapes
def test_ranks_and_their_collectives():
    r = both("ranks")
    ranks = {facts["dist.rank"]: pid for pid, facts in r.facts.items() if "dist.rank" in facts}
    assert sorted(ranks) == ["0", "1"]
    for pid in ranks.values():
        assert len(r.of("optimizer", pid)) == 4
        met = r.of("communication", pid)
        own = [s.name for s in met if s.name not in ("gradients", "broadcast")]  # these are the model's
        assert own == ["all_reduce"] * 4 + ["barrier"]
        # What a backward pass waits for the other rank's gradients lies at its end.
        ends = [s.end for s in r.of("backward", pid)]
        waits = [s for s in met if s.name == "gradients"]
        assert waits and all(s.end in ends and s.begin < s.end for s in waits)


@pytest.mark.shapes
def test_saving(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    without_agent("saves", str(tmp_path / "a"))
    r, done = with_agent("saves", str(tmp_path / "b"))
    saves = r.of("checkpoint")
    assert [s.name for s in saves] == ["torch.save"] * 3
    for name, save in zip(("0.pt", "4.pt", "whole.pt"), saves):
        assert save.value == (tmp_path / "b" / name).stat().st_size
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


# ---- exceptions ----


def line_of(text):
    lines = pathlib.Path(JOBS).read_text().splitlines()
    return next(str(i) for i, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_exception_names_the_users_line(workers):
    r, done = with_agent("raises", workers)
    assert done.returncode == 1
    facts = next(f for f in r.facts.values() if "torch.num_threads" in f)
    assert facts["exception.type"] == "ValueError"
    assert facts["exception.message"] == "sample 13 is bad"
    assert facts["exception.file"] == JOBS and facts["exception.function"] == "__getitem__"
    assert facts["exception.line"] == line_of("raise ValueError")
    if workers != "0":
        in_worker = [f for f in r.facts.values() if "exception.type" in f and f is not facts]
        assert [f["exception.line"] for f in in_worker] == [line_of("raise ValueError")]


@pytest.mark.shapes
def test_an_exception_outside_of_training_prints_as_without_us():
    plain, (r, done) = without_agent("raises_alone"), with_agent("raises_alone")
    assert done.stderr == plain.stderr
    facts = next(f for f in r.facts.values() if "exception.type" in f)
    assert facts["exception.type"] == "KeyError" and facts["exception.function"] == "deep"


# ---- injection ----


def run_python(arguments, cwd=None, listening=True, python=sys.executable, **more):
    if listening:
        return receiver.run([python, *arguments], AGENT, cwd=cwd, **more)
    env = receiver.environment(AGENT, None, **more)
    return None, subprocess.run([python, *arguments], env=env, cwd=cwd, capture_output=True)


SHOW = "import sys; print(sys.path, sys.argv, sys.flags)"


@pytest.mark.shapes
def test_a_process_without_a_framework_does_not_even_connect():
    r, done = run_python(["-c", SHOW])
    assert r.peers == []
    assert done.stdout == subprocess.run([sys.executable, "-c", SHOW], capture_output=True,
                                         cwd=None).stdout
    r, done = run_python(["-c", "import sys; print('_flatout_agent' in sys.modules, 'ctypes' in sys.modules)"])
    assert done.stdout == b"False False\n"


def test_chains_the_sitecustomize_that_was_there(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs', __name__, __file__)\nvalue = 7\n")
    code = "import sitecustomize as s, sys; print(s.value, s.__file__, sys.modules['sitecustomize'] is s)"
    env = dict(os.environ, PYTHONPATH=str(tmp_path))
    plain = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    _, done = run_python(["-c", code], PYTHONPATH=str(tmp_path))
    assert done.stdout == plain.stdout and b"theirs sitecustomize" in done.stdout
    assert done.stderr == plain.stderr == b""
    (tmp_path / "sitecustomize.py").write_text("raise ImportError('broken')\n")
    plain = subprocess.run([sys.executable, "-c", "print(1)"], env=env, capture_output=True)
    _, done = run_python(["-c", "print(1)"], PYTHONPATH=str(tmp_path))
    assert done.stdout == plain.stdout == b"1\n"
    assert done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


@pytest.mark.shapes
@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_where_python_ignores_the_environment_nothing_breaks(flag):
    r, done = run_python([flag, "-c", "print(1)"])
    assert (done.returncode, done.stdout, done.stderr, r.peers) == (0, b"1\n", b"", [])


@pytest.mark.shapes
def test_without_a_recorder_the_job_runs_as_ever():
    _, done = run_python([JOBS, "plain", "2"], listening=False)
    assert done.stdout == without_agent("plain", "2").stdout
    assert done.stderr == b""


def test_a_recorder_that_dies_does_not_matter():
    r = receiver.Receiver()
    job = subprocess.Popen([sys.executable, JOBS, "plain", "2"], env=receiver.environment(AGENT, r),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not r.of("optimizer") and job.poll() is None:
        pass
    r.close()
    out, err = job.communicate(timeout=300)
    assert out == without_agent("plain", "2").stdout
    assert err == b""


def test_a_fault_of_ours_turns_the_agent_off_and_is_said_once(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys, runpy, torch\n"
        "def fail(*a): raise RuntimeError('ours')\n"
        "sys.modules['_flatout_agent.loader']._describe = fail\n"
        "sys.argv[1:] = ['plain', '0']\n"
        "runpy.run_path(%r, run_name='__main__')\n" % JOBS)
    r, done = run_python([str(broken)])
    assert done.returncode == 0 and done.stdout == without_agent("plain", "0").stdout
    assert done.stderr.count(b"flatout: warning: the agent in pid") == 1
    assert any("ours" in f.get("agent.off", "") for f in r.facts.values())


@pytest.mark.parametrize("name", ["python3.8", "python3.9", "python3.10", "python3.12", "python3.13",
                                  "python3.14", "python3.15"])
@pytest.mark.shapes
def test_other_pythons_start_with_it(name):
    import shutil

    python = shutil.which(name)
    if python is None or subprocess.run([python, "-c", "1"], capture_output=True).returncode != 0:
        pytest.skip("no %s here" % name)
    _, done = run_python(["-c", "print(1)"], python=python)
    assert (done.stdout, done.stderr) == (b"1\n", b"")


# ---- cost ----


def test_it_counts_what_it_costs():
    r, _ = with_agent("loop")
    hooks, total, most, steps = (sum(c) if i != 2 else max(c) for i, c in
                                 enumerate(zip(*(c for cs in r.costs.values() for c in cs))))
    assert steps == 12 and hooks >= 4 * 12
    assert 0 < most <= total


def test_pure_python_3_8_and_the_standard_library_only():
    allowed = set(getattr(sys, "stdlib_module_names", ())) | {"torch", "numpy", "tensorflow", "keras", "PIL", "torchvision"}
    for path in (ROOT / "python" / "flatout" / "agent").rglob("*.py"):
        text = path.read_text()
        compile(text, str(path), "exec")
        tree = ast.parse(text, feature_version=(3, 8))
        names = [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
        names += [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level == 0]
        for name in names:
            assert not sys.version_info >= (3, 10) or name.split(".")[0] in allowed, (path, name)


# ---- TensorFlow ----

TENSORFLOW_JOBS = str(HERE / "agent_jobs_tensorflow.py")


@pytest.mark.shapes
@pytest.mark.parametrize("arguments, expected", [
    (["fit"], {"optimizer": 12, "validation": 4}),
    (["fit_half"], {"validation": 4}),
    (["fit_generator"], {"optimizer": 6}),
    (["fit_pipeline"], {"optimizer": 60}),
    (["custom"], {"optimizer": 6, "backward": 6, "input_wait": 7, "epoch": 1}),
    (["custom", "compiled"], {"optimizer": 6, "forward": 6, "input_wait": 7, "epoch": 1}),
    (["session"], {"optimizer": 5, "feed": 5}),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_tensorflow(tensorflow, arguments, expected):
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    plain = subprocess.run([tensorflow, TENSORFLOW_JOBS, *arguments], env=env, capture_output=True)
    r, done = receiver.run([tensorflow, TENSORFLOW_JOBS, *arguments], AGENT, timeout=300)
    assert done.returncode == plain.returncode == 0, done.stderr.decode()
    assert done.stdout == plain.stdout
    assert b"flatout: warning" not in done.stderr
    n = counts(r)
    assert {k: n.get(k, 0) for k in expected} == expected
    if arguments == ["fit_generator"]:
        assert n["feed"] >= 6
    halves = [f["model.half"].split("/") for f in r.facts.values() if "model.half" in f]
    if arguments == ["fit_half"] and any(f.get("tensorflow.version", "") >= "2.16" for f in r.facts.values()):  # Keras 3
        assert [kind for kind, _, _ in halves] == ["float16"] and all(float(t) > 0 for t in halves[0][1:])
    else:
        assert halves == []
    assert any("tensorflow.version" in f for f in r.facts.values())
    # TensorFlow 2.17 and later have the model of a pipeline.
    if arguments == ["fit_pipeline"] and any(f["tensorflow.version"] >= "2.17" for f in r.facts.values() if "tensorflow.version" in f):
        stages = next(f["tf.data.stages"] for f in r.facts.values() if "tf.data.stages" in f)
        assert "Map" in stages and "agent_jobs_tensorflow.py:" in stages and " in fit_pipeline" in stages
        assert n["input_wait"] > 0


# ---- JAX ----


@pytest.mark.shapes
@pytest.mark.parametrize("job, expected", [
    ("compiled", {"optimizer": 6, "forward": 6}),
    ("method", {"optimizer": 6}),
    ("anew", {"optimizer": 6, "forward": 6}),
    ("eager", {"optimizer": 0, "backward": 6}),
])
def test_jax(tensorflow, job, expected):
    command = [tensorflow, str(HERE / "agent_jobs_jax.py"), job]
    if subprocess.run([tensorflow, "-c", "import jax"], capture_output=True).returncode != 0:
        pytest.skip("no Python with JAX: tools/venv.sh build/venv-tf tests/requirements-tensorflow.txt")
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    plain = subprocess.run(command, env=env, capture_output=True)
    r, done = receiver.run(command, AGENT, timeout=300)
    assert done.returncode == plain.returncode == 0, done.stderr.decode()
    assert done.stdout == plain.stdout
    assert b"flatout: warning" not in done.stderr
    n = counts(r)
    assert {k: n.get(k, 0) for k in expected} == expected
    assert any("jax.version" in f for f in r.facts.values())

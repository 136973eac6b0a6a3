"""Which container grows, and who changed a setting: what the agent says of both in real jobs."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.parallel, pytest.mark.e2e]

HERE = pathlib.Path(__file__).resolve().parent
JOBS = str(HERE / "growth_jobs.py")


def line_of(mark):
    lines = pathlib.Path(JOBS).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith("# " + mark))


def place(mark, function):
    return "%s:%d in %s" % (JOBS, line_of(mark), function)


def facts_of(flatout, python, folder, *job):
    """What run.json says once the job has run: {key: value}, those of workers by the same names."""
    done = subprocess.run([flatout, "run", "--quiet", "--out", str(folder / "run"), "--", python, JOBS, *job],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    info = json.loads((folder / "run" / "run.json").read_text())["facts"]
    assert not any(key.startswith("agent.") for key in info), info
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    return info, done, env


def growths(info):
    return sorted(v for k, v in info.items() if re.search(r"(^|\.)growth\.\d+$", k) and v)


def growth(info, name):
    found = [v for v in growths(info) if v.startswith((name + " at ", name + ": "))]
    assert len(found) == 1, (name, growths(info))
    return found[0]


def check(text, name, where, a_step=1.0):
    assert text.startswith("%s at %s: " % (name, where)), text
    items, rate = text[len("%s at %s: " % (name, where)):].split(", ")[:2]
    assert items.endswith(" items") and int(items.split()[0]) >= 20
    assert rate.endswith(" a step") and abs(float(rate.split()[0]) - a_step) < 0.1 * a_step


def test_a_list_of_a_functions_own(flatout, job_python, tmp_path):
    info, done, _ = facts_of(flatout, job_python, tmp_path, "local")
    assert done.stdout == "gone True\n"
    check(growth(info, "kept"), "kept", place("GROWS kept", "local"))
    assert len(growths(info)) == 1  # not the deque with a bound, not the list that is cleared


def test_the_line_that_opens_files_which_stay_open(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "files")
    assert info["descriptors.opened_at"] == place("OPENS", "files")


def test_an_attribute_and_a_list_in_a_dict(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "attribute")
    check(growth(info, "history.values"), "history.values", place("GROWS values", "add"))
    assert growth(info, "history.values").endswith(", with its graph")
    assert info["growth.0"].startswith("history.values")
    check(growth(info, "by_name['loss']"), "by_name['loss']", place("GROWS by_name", "attribute"))
    assert len(growths(info)) == 2


def test_tensors_whose_graph_is_never_let_go(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "graphs")
    for name, mark, function in (("total", "GROWS total", "graphs"), ("watch.drift", "GROWS drift", "__call__")):
        text = growth(info, name)
        assert text.startswith("%s at %s: a graph of " % (name, place(mark, function))), text
        assert int(text.split("a graph of ")[1].split()[0]) >= 16
    assert len(growths(info)) == 2  # not the sum of what was detached, not the loss itself


def test_a_global_and_a_cache_without_bound(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "elsewhere")
    check(growth(info, "seen"), "seen", place("GROWS seen", "elsewhere"))
    check(growth(info, "squares"), "squares", place("GROWS squares", "squares"))


@pytest.mark.parametrize("job, name, mark, function", [
    ("worker", "Cached.cache", "GROWS cache", "__getitem__"),
    ("inline", "loader.dataset.cache", "GROWS cache", "__getitem__"),
    ("streamed", "Streamed.names", "GROWS names", "__iter__"),
])
def test_what_a_dataset_keeps(flatout, job_python, tmp_path, job, name, mark, function):
    info, _, _ = facts_of(flatout, job_python, tmp_path, job)
    check(growth(info, name), name, place(mark, function), 4.0)
    if job == "worker":
        assert [v for k, v in info.items() if k.endswith("torch.num_threads.set_at")] == [
            place("SETS worker", "four_threads")]


def test_locals_that_the_job_took_itself_stay_as_they_are(flatout, job_python, tmp_path):
    _, done, env = facts_of(flatout, job_python, tmp_path, "reads_locals")
    plain = subprocess.run([job_python, JOBS, "reads_locals"], env=env, capture_output=True, text=True)
    assert done.stdout == plain.stdout


def test_who_changed_a_setting(flatout, job_python, tmp_path):
    info, done, env = facts_of(flatout, job_python, tmp_path, "settings")
    plain = subprocess.run([job_python, JOBS, "settings"], env=env, capture_output=True, text=True)
    assert done.stdout == plain.stdout
    assert info["gc.threshold"] == "900,11,12" and info["torch.num_threads"] == "2"
    assert info["torch.interop_threads"] == "3"
    assert {k: v for k, v in info.items() if k.endswith(".set_at")} == {
        "gc.threshold.set_at": place("SETS threshold", "change"),
        "affinity.set_at": place("SETS affinity", "change"),
        "torch.interop_threads.set_at": place("SETS interop", "settings"),
        "torch.num_threads.set_at": place("SETS threads", "settings"),
    }
    assert place("STARTS", "settings") in [v for k, v in info.items() if k.startswith("program.")]


def test_a_model_in_double_precision(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "doubles")
    assert info["model.float64"] == "272/272" and info["model.float64.set_at"] == place("SETS doubles", "doubles")


def test_a_loss_in_double_precision_says_nothing_of_the_model(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "loss_in_double")
    assert info["model.float64"] == "0/272" and "model.float64.set_at" not in info


def test_a_model_in_half_precision(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "halves")
    kind, half, single = info["model.half"].split("/")
    assert kind == "bfloat16" and float(half) > 0 and float(single) > 0
    assert info["model.half.set_at"] == place("SETS halves", "halves")
    info, _, _ = facts_of(flatout, job_python, tmp_path, "a_cast")
    assert "model.half" not in info


def test_a_graph_that_is_kept_for_another_backward_pass(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "kept_graphs")
    assert info["torch.retain_graph"] == "True" and info["torch.retain_graph.set_at"] == place("BACKWARD", "steps")
    info, _, _ = facts_of(flatout, job_python, tmp_path, "anomaly")
    assert "torch.retain_graph" not in info


def test_anomaly_detection_that_lasts(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "anomaly")
    assert info["torch.anomaly"] == "True" and info["torch.anomaly.set_at"] == place("SETS anomaly", "anomaly")
    info, _, _ = facts_of(flatout, job_python, tmp_path, "anomaly_of_one_step")
    assert info.get("torch.anomaly", "False") == "False"


def test_looks_are_not_compiled_with_the_job(flatout, job_python, tmp_path):
    done = subprocess.run([flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--", job_python,
                           str(HERE / "agent_jobs.py"), "compiled_step"], capture_output=True, text=True, timeout=120)
    assert "Dynamo does not know" not in done.stderr


# ---- lines found in the source ----

SOURCE = '''
seen = {}
class Memory:
    """values.append( stands here for nothing"""
    def __init__(self):
        self.values = []  # values.append(0)
        self.values[0] = 1
    def put(self, value):
        if value:
            self.values.append(value)
def main(values, table):
    other_values.append(1)
    if seen[1] == table[2]:
        seen[(1, table[2])] = values
    values += [1]
    table["loss"].append(2)
    heapq.heappush(queue, (1, 2))
if main:
    names |= {1}
def short(): names.add(2)
def mean(loss):
    drift = zeros(drift_shape)
    drift = mix(drift, loss)
    self.best.lerp_(loss, 0.1)
def log(losses, loss):
    losses.append(loss.item())
    losses.append(loss)
    counts.append(len(losses))
'''


@pytest.mark.parametrize("kind, name, inside, attribute, subscript, expected", [
    ("LIST", "values", "class Memory", True, False, "10 in put"),
    ("LIST", "values", "def main", False, False, "15 in main"),
    ("LIST", "table", "def main", False, True, "16 in main"),
    ("LIST", "queue", "", False, False, "17 in main"),
    ("DICT", "seen", "", False, False, "14 in main"),
    ("SET", "names", "", False, False, "19 in <module>"),
    ("SET", "names", "def short", False, False, "20 in short"),
    ("GRAPH", "drift", "def mean", False, False, "23 in mean"),
    ("GRAPH", "best", "", True, False, "24 in mean"),
    ("LIST", "losses", "def log", False, False, "27 in log"),
    ("LIST", "counts", "", False, False, "28 in log"),
    ("DEQUE", "seen", "", False, False, None),
    ("LIST", "nothing", "", False, False, None),
])
def test_the_line_that_makes_a_container_grow(tmp_path, kind, name, inside, attribute, subscript, expected):
    import importlib.util

    path = HERE.parents[1] / "python" / "flatout" / "agent" / "mutations.py"
    spec = importlib.util.spec_from_file_location("mutations", path)
    mutations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    file = tmp_path / "job.py"
    file.write_text(SOURCE)
    search = mutations.find([mutations.Hint(str(file), name, getattr(mutations, kind), inside, 0, attribute,
                                            subscript)], [])
    found = None
    while True:
        try:
            next(search)
        except StopIteration as end:
            found = end.value
            break
    assert found == (expected and "%s:%s" % (file, expected))


def test_a_large_graph_is_counted_by_the_numbers_of_its_nodes(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "large_graph")
    assert info["torch.graph_nodes"] == "3001"


def test_padding_that_no_row_needs_is_told_of_ids_and_of_nothing_else(flatout, job_python, tmp_path):
    info, _, _ = facts_of(flatout, job_python, tmp_path, "texts", "words")
    assert info["batch.padding"] == "160 of 256 columns in 4 batches"
    assert info["batch.padding.at"] == place("ASKS", "texts")
    info, _, _ = facts_of(flatout, job_python, tmp_path, "texts", "numbers")
    assert "batch.padding" not in info


class Lazy(dict):
    """A job's own: what it does when it is asked is the job's business."""

    def values(self):
        raise AssertionError("the job's own code ran")


def test_what_counts_as_token_ids(monkeypatch):
    import collections
    import importlib.util
    import types

    torch = pytest.importorskip("torch")
    never = 1 << 62
    state = types.SimpleNamespace(steps=10, batch_step=3)
    core = types.SimpleNamespace(NEVER=never, state=state, cost=lambda *_: None, is_off=False, compiling=lambda: False,
                                 info=lambda key, value: told.append((key, value)), guarded=lambda function: function)
    agent = types.ModuleType("agent")
    agent.core, agent.forward, agent.places = core, types.SimpleNamespace(models=list), types.SimpleNamespace(
        users_place=lambda frame: "%s:%d" % (frame.f_code.co_filename, frame.f_lineno))
    for name in ("core", "forward", "places"):
        monkeypatch.setitem(sys.modules, "agent." + name, getattr(agent, name))
    monkeypatch.setitem(sys.modules, "agent", agent)
    path = HERE.parents[1] / "python" / "flatout" / "agent" / "padding.py"
    spec = importlib.util.spec_from_file_location("agent.padding", path)
    told = []
    padding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(padding)
    padding.install(torch)

    ids = torch.arange(4 * 64).reshape(4, 64)
    ids[:, 40:] = 0
    full, several = torch.ones(4, 64, dtype=torch.int64), (ids % 7 == 1).long()
    encoding = type("Encoding", (collections.UserDict,), {"data": None, "values": Lazy.values})()
    encoding.__dict__["data"] = {"ids": ids, "mask": full}
    broken = collections.UserDict()
    del broken.data
    for batch, expected in [
            ((ids, torch.zeros(4)), 1), ({"ids": ids, "mask": full}, 1), (encoding, 1), (ids, 1), (broken, 0),
            ((full,), 0), ((several,), 0), ((torch.rand(4, 3, 8, 8), ids), 0), (Lazy(ids=ids), 0)]:
        assert len(padding._token_ids(batch)) == expected
    padding.look((ids, full))
    assert told[0] == ("batch.padding", "24 of 64 columns in 1 batches") and state.batch_step == 20
    monkeypatch.setattr(padding, "_token_ids", None)
    padding.look(ids)
    assert state.batch_step == never and not core.is_off

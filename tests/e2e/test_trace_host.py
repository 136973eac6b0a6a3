"""What the host did, told from traces that are built event by event; and how traces come in and go out."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
from trace_jobs import Job, run, steps_of, summary

pytestmark = pytest.mark.parallel

SLEEP = ("<built-in function sleep>",)
SAVE = ("torch/serialization.py(944): save", "torch/serialization.py(1183): _save", "<built-in method write_record of X object at 0x7f00>")
WORK = ("<built-in function len>",)
NATIVE = ("<built-in method compress of zlib object at 0x7f00>",)
LOCK = ("threading.py(600): wait", "<built-in method acquire of _thread.lock object at 0x7f00>")
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def python(job: Job, length: float, *calls: str) -> None:
    """Nested calls that all take so long."""
    for name in calls:
        job.slice("python_function", name, job.now, job.now + length)
    job.now += length


def on_the_host(*calls: str, file: str = "train.py"):
    """A step of operators, in which the user's own function calls something for four fifths of the time."""

    def step(job: Job) -> None:
        for _ in range(10):
            job.host(200, "aten::mm")
        python(job, 8000, f"{file}(20): own", *calls)

    return step


def beside_a_device(*calls: str, waits: bool = False):
    def step(job: Job) -> None:
        for _ in range(10):
            job.host(10, "aten::mm")
            job.launch("gemm", 200)
        if waits:
            job.wait()
        else:
            job.now = max(job.streams.values())
        python(job, 8000, "train.py(20): own", *calls)

    return step


def after_a_wait(*calls: str):
    return beside_a_device(*calls, waits=True)


@pytest.mark.parametrize("built", [on_the_host, beside_a_device, after_a_wait])
@pytest.mark.parametrize("calls, verdict", [(SLEEP, "stall.idle_wait"), (SAVE, "stall.checkpoint")], ids=["sleep", "save"])
def test_sleeping_and_saving_are_no_work_of_pythons(flatout, tmp_path, built, calls, verdict):
    found = summary(flatout, steps_of(tmp_path / "trace.json", built(*calls)))
    assert [f["id"] for f in found["findings"]] == [verdict], found["headline"]
    finding = found["findings"][0]
    assert finding["cost_ms_per_step"] == pytest.approx(8, rel=0.1)
    assert (finding["where"]["file"], finding["where"]["line"], finding["where"]["function"]) == ("train.py", 20, "own")


@pytest.mark.parametrize("calls, title", [(WORK * 3 + ("helper.py(3): inner",), "Python between"), (NATIVE, "A function that Python calls")])
def test_work_of_pythons_is(flatout, tmp_path, calls, title):
    finding = summary(flatout, steps_of(tmp_path / "trace.json", on_the_host(*calls)))["findings"][0]
    assert finding["id"] == "cpu.python_bound" and finding["title"].startswith(title)


def test_waiting_for_another_thread_is_neither(flatout, tmp_path):
    found = summary(flatout, steps_of(tmp_path / "trace.json", on_the_host(*LOCK)))
    assert found["verdict"] == "none" and found["findings"] == []


def test_a_loader_that_sleeps_costs_no_more_than_the_loader(flatout, tmp_path):
    def step(job: Job) -> None:
        job.slice("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", job.now, job.now + 8000)
        python(job, 8000, "data.py(5): __getitem__", *SLEEP)
        for _ in range(10):
            job.host(10, "aten::mm")
            job.launch("gemm", 200)
        job.wait()

    findings = summary(flatout, steps_of(tmp_path / "trace.json", step))["findings"]
    assert [(f["id"], f["title"], f["where"]["file"]) for f in findings] == [("stall.idle_wait", "The loader sleeps", "data.py")]


# ---- ranks ----


def gloo_rank(path: Path, rank: int, world: int, late_us: int, count: int = 10, drawn: bool = True) -> Path:
    """So many steps: the last rank is late, the others wait in a collective, which all leave together."""
    events = Job()
    for step in range(count):
        begin = step * 20_000 + rank * 777  # clocks that do not agree
        own = 3000 + (late_us if rank == world - 1 else 0)
        end = 3000 + late_us + 1000
        if drawn:
            events.slice("user_annotation", f"ProfilerStep#{step}", begin, begin + end + 1000)
        if own > 3000:
            for name in ("train.py(8): slow_preprocess", *SLEEP):
                events.slice("python_function", name, begin, begin + late_us)
        for k in range(6):
            events.slice("cpu_op", "aten::mm", begin + own - 3000 + k * 500, begin + own - 2500 + k * 500)
        events.slice("python_function", "<built-in method run_backward of X object at 0x7f00>", begin + own, begin + end)
        events.slice("user_annotation", "gloo:all_reduce", begin + own, begin + end, tid=2)
        events.slice("cpu_op", "aten::add_", begin + end, begin + end + 1000)
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": events.events}))
    return path


@pytest.mark.parametrize("world", [2, 4])
def test_a_straggler_without_devices_is_named_with_what_it_does(flatout, tmp_path, world):
    files = [gloo_rank(tmp_path / f"rank{k}.json", k, world, 8000) for k in range(world)]
    found = summary(flatout, *files)
    assert found["verdict"] == "dist.straggler"
    assert [(s["rank"], s["waiting"]) for s in found["stragglers"]] == [(world - 1, list(range(world - 1)))]
    assert found["stragglers"][0]["delay_us"] == pytest.approx(8000, rel=0.15)
    assert found["findings"][0]["where"]["function"] == "slow_preprocess"
    assert "cpu.python_bound" not in {f["id"] for f in found["findings"]}
    # What is left of the collectives for the rank that waits for nobody.
    communication = [f for f in found["findings"] if f["id"] == "dist.exposed_communication"]
    assert [f["cost_ms_per_step"] for f in communication] == [pytest.approx(1, rel=0.05)]
    if world > 2:
        assert "others wait for it" in run(flatout, "summary", *files)


def test_a_straggler_is_one_without_steps_but_costs_none_of_them(flatout, tmp_path):
    def found(late_us: int) -> dict:
        files = [gloo_rank(tmp_path / f"rank{k}.json", k, 2, late_us, count=20, drawn=False) for k in range(2)]
        return summary(flatout, *files)

    finding = found(8000)["findings"][0]
    assert finding["id"] == "dist.straggler" and finding.get("cost_ms_per_step") is None
    assert found(100)["stragglers"] == []  # a hundredth of the time


def test_ranks_that_come_together_have_no_straggler(flatout, tmp_path):
    found = summary(flatout, *(gloo_rank(tmp_path / f"rank{k}.json", k, 2, 0) for k in range(2)))
    assert found["stragglers"] == [] and found["verdict"] == "dist.exposed_communication"


# ---- without steps, without launches ----


@pytest.mark.parametrize("wait, verdict", [(8000, "input.too_few_workers"), (100, "healthy")])
def test_without_steps_a_tenth_of_the_time_is_enough(flatout, tmp_path, wait, verdict):
    job = Job()
    for _ in range(10):
        job.host(wait, LOADER, "user_annotation")
        for _ in range(10):
            job.host(200, "aten::mm")
    file = job.write(tmp_path / "trace.json")
    assert summary(flatout, file)["verdict"] == verdict
    assert "input wait" in run(flatout, "summary", file)


def waits_then_reads_back(job: Job) -> None:
    job.host(6000, LOADER, "user_annotation")
    for _ in range(20):
        job.launch("gemm", 600)
    job.wait()
    job.host(2000, "aten::copy_")


def without_correlation(e: dict) -> list[dict]:
    return [dict(e, args={k: v for k, v in e["args"].items() if k != "correlation"})]


def as_begin_and_end(e: dict) -> list[dict]:
    begin = {k: v for k, v in e.items() if k != "dur"}
    return [dict(begin, ph="B"), {"ph": "E", "pid": e["pid"], "tid": e["tid"], "ts": round(e["ts"] + e["dur"], 3)}]


def in_another_form(file: Path, change) -> Path:
    events = json.loads(file.read_text())["traceEvents"]
    # Slices that begin together: the longest first; those that touch: the end first.
    parts = [part for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])) for part in change(e)]
    parts.sort(key=lambda e: (e["ts"], e["ph"] != "E"))
    out = file.with_name("other.json")
    out.write_text(json.dumps({"traceEvents": parts}))
    return out


@pytest.mark.parametrize("change", [without_correlation, as_begin_and_end])
def test_gaps_are_told_whether_launches_can_be_matched_or_not(flatout, tmp_path, change):
    file = steps_of(tmp_path / "trace.json", waits_then_reads_back)
    expected, found = (summary(flatout, f)["findings"] for f in (file, in_another_form(file, change)))
    assert {f["id"] for f in expected} == {"input.too_few_workers", "gpu.sync"}
    for a, b in zip(expected, found, strict=True):
        assert b["id"] == a["id"] and b["cost_ms_per_step"] == pytest.approx(a["cost_ms_per_step"], rel=0.1)


def test_begins_and_ends_keep_what_a_complete_slice_says(flatout, tmp_path):
    file = steps_of(tmp_path / "trace.json", waits_then_reads_back)
    one, two = (next(iter(summary(flatout, f)["traces"].values()))["devices"]["0"] for f in (file, in_another_form(file, as_begin_and_end)))
    assert two["launch"]["n"] == one["launch"]["n"] == 240
    assert (two["gaps"], two["busy_us"]) == (one["gaps"], one["busy_us"])


def test_idle_time_that_nothing_explains_is_no_health(flatout, tmp_path):
    def step(job: Job) -> None:
        for _ in range(20):
            job.launch("gemm", 600)
        job.now = max(job.streams.values())
        job.host(1500)

    file = steps_of(tmp_path / "trace.json", step)
    assert summary(flatout, in_another_form(file, without_correlation))["verdict"] == "none"


# ---- whose a line is ----


@pytest.mark.parametrize("file, whose", [
    ("multithreading.py", True), ("my_contextlib.py", True), ("pytorch/train.py", True), ("mykeras/train.py", True), ("/job/src/train.py", True),
    ("selectors.py", False), ("torch/nn/modules/module.py", False), ("multiprocessing/queues.py", False), ("/usr/lib/python3.11/queue.py", False),
    ("/venv/lib/python3.11/site-packages/x/y.py", False), ("tqdm/std.py", False),
])
def test_the_users_own_line_is_named_and_no_librarys(flatout, tmp_path, file, whose):
    finding = summary(flatout, steps_of(tmp_path / "trace.json", on_the_host(*SLEEP, file=file)))["findings"][0]
    assert (finding.get("where") or {}).get("file") == (file if whose else None)


def test_numbered_ranges_are_one_row(flatout, tmp_path):
    def step(job: Job) -> None:
        for _ in range(10):
            job.host(200, "aten::mm")
        job.host(8000)

    rows = [row for row in run(flatout, "summary", steps_of(tmp_path / "trace.json", step)).splitlines() if "otherwise" in row]
    assert len(rows) == 1 and rows[0].endswith("100 %  of the rest in ProfilerStep")


def test_a_trace_of_jax_tells_sleep(flatout, tmp_path):
    """As JAX writes it: no categories, Python's functions behind a $, a range for each step."""
    job = Job()
    for k in range(10):
        begin = job.now
        job.slice("", "$time sleep", job.now, job.now + 8000)
        job.now += 8000
        for _ in range(5):
            job.host(100, "PjitFunction(step)", "")
        job.slice("", "train", begin, job.now, step_num=str(k))
    for e in job.events:
        del e["cat"]
    found = summary(flatout, job.write(tmp_path / "trace.json"))
    assert found["verdict"] == "stall.idle_wait"
    assert found["findings"][0]["cost_ms_per_step"] == pytest.approx(8, rel=0.05)


# ---- in and out ----


@pytest.mark.parametrize("form", ["json", "json.gz", "pftrace"])
@pytest.mark.parametrize("way", ["/dev/stdin", "-", "fifo"])
def test_a_trace_may_come_through_a_pipe(flatout, tmp_path, form, way):
    file = steps_of(tmp_path / "trace.json", on_the_host(*SLEEP))
    if form == "json.gz":
        file = tmp_path / "trace.json.gz"
        file.write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    elif form == "pftrace":
        file = tmp_path / "trace.pftrace"
        run(flatout, "convert", tmp_path / "trace.json", "-o", file)
    name, pipe = way, None
    if way == "fifo":
        name = str(tmp_path / "fifo")
        os.mkfifo(name)
        pipe = subprocess.Popen(["cp", file, name])
    for words in (["summary", "--json", name], ["convert", name, "-o", tmp_path / "out.json"]):
        if way == "fifo" and words[0] == "convert":
            pipe = subprocess.Popen(["cp", file, name])
        with subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as cat:
            done = subprocess.run([flatout, "trace", *map(str, words)], stdin=cat.stdout, capture_output=True, text=True, timeout=60)
        if pipe:
            assert pipe.wait(timeout=60) == 0
        assert done.returncode == 0, done.stderr
        if words[0] == "summary":
            assert json.loads(done.stdout)["verdict"] == "stall.idle_wait"
    assert summary(flatout, tmp_path / "out.json")["verdict"] == "stall.idle_wait"


def test_what_is_no_escape_is_mended(flatout, tmp_path):
    name = r"\ud800 \u0000 é \n \\ \" \/ \x \u12"
    text = '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"%s","ts":1,"dur":1,"pid":1,"tid":1}]}'
    (tmp_path / "odd.json").write_text(text % name)
    assert "1 mended" in run(flatout, "convert", tmp_path / "odd.json", "-o", tmp_path / "out.json")
    out = json.loads((tmp_path / "out.json").read_text())["traceEvents"][0]["name"]
    assert out == "\ud800 \0 é \n \\ \" / \\x \\u12"
    (tmp_path / "fine.json").write_text(text % r"\u00e9 \n \\x")
    assert "mended" not in run(flatout, "convert", tmp_path / "fine.json", "-o", tmp_path / "out.json")


@pytest.mark.parametrize("command, out", [("convert", "out.json"), ("report", "out.html")])
def test_a_limit_on_files_is_an_error_that_leaves_nothing(flatout, tmp_path, command, out):
    file = steps_of(tmp_path / "trace.json", on_the_host(*SLEEP))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run([flatout, "trace", command, file, "-o", tmp_path / out], preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert os.listdir(tmp_path) == ["trace.json"]


# ---- steps without the profiler's own ----


def optimizer_steps(path: Path, *works: tuple[int, float], rounds: int = 12, names: tuple[str, ...] = ("SGD",), last: tuple[str, ...] = ("aten::mm",)) -> Path:
    """Rounds in which each work is so many operators, of which the last one has a name of its own, a wait for a batch of so many us, and an optimizer's step."""
    job = Job()
    job.now += 50_000  # start-up
    job.slice("cpu_op", "aten::empty", 0, 10)
    for _ in range(rounds):
        for k, (operators, wait) in enumerate(works):
            if wait:
                job.slice("user_annotation", LOADER, job.now, job.now + wait)
                job.now += wait
            for i in range(operators):
                job.host(100, last[k % len(last)] if i == operators - 1 else "aten::mm")
            name = names[k % len(names)]
            job.host(50, f"Optimizer.step#{name}.step", "user_annotation")
    return job.write(path)


@pytest.mark.parametrize("works, names", [
    ([(10, 9000)], ("SGD",)),
    ([(10, 9000), (4, 0)], ("Adam", "SGD")),
    ([(10, 9000), (4, 0)], ("Adam",)),  # two of one kind take turns
    ([(10, 4500), (10, 4500), (4, 0)], ("Adam",)),
])
def test_the_optimizer_tells_the_steps_where_nothing_else_does(flatout: str, tmp_path: Path, works: list, names: tuple) -> None:
    found = summary(flatout, optimizer_steps(tmp_path / "t.json", *works, names=names))
    trace = next(iter(found["traces"].values()))
    assert trace["steps_from"] == "optimizer" and len(trace["steps"]) == 11
    whole = sum(100 * operators + wait + 50 for operators, wait in works)
    assert {step["wall_us"] for step in trace["steps"]} == {whole}
    assert {step["input_wait_us"] for step in trace["steps"]} == {9000}
    assert found["verdict"] == "input.too_few_workers"
    assert found["findings"][0]["cost_ms_per_step"] == pytest.approx(9)


def test_tensorflows_input_has_tensorflows_advice(flatout: str, tmp_path: Path) -> None:
    job = Job()
    for k in range(10):
        begin = job.now
        job.host(9000, "IteratorGetNext")
        job.host(1000, "MatMul")
        job.slice("user_annotation", f"ProfilerStep#{k}", begin, job.now)
    found = summary(flatout, job.write(tmp_path / "t.json"))["findings"][0]
    assert (found["id"], found["title"]) == ("input.too_few_workers", "tf.data does not keep up with the steps")
    assert [remedy["id"] for remedy in found["remedies"]] == ["prefetch", "parallel_map"]


def test_optimizers_that_take_turns_are_told_apart_by_the_names_of_what_is_computed(flatout: str, tmp_path: Path) -> None:
    """A generator and a discriminator of as many operators."""
    for last, steps in ((("aten::tanh", "aten::sigmoid"), 11), (("aten::tanh",), 23)):
        found = summary(flatout, optimizer_steps(tmp_path / "t.json", (10, 9000), (10, 0), names=("Adam",), last=last))
        assert len(next(iter(found["traces"].values()))["steps"]) == steps


def test_a_step_of_the_optimizers_can_be_cut_out(flatout: str, tmp_path: Path) -> None:
    """By the number that it has in the summary, also where rounds of two make a step."""
    whole = optimizer_steps(tmp_path / "t.json", (10, 9000), (4, 0), names=("Adam",))
    run(flatout, "slice", whole, "--step", "3", "-o", tmp_path / "s.json")
    begin = 50_000 + 3 * 10_500
    events = [e for e in json.loads((tmp_path / "s.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert (min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)) == (begin, begin + 10_500)
    assert "it has 1, 2, 3" in run(flatout, "slice", whole, "--step", "99", "-o", tmp_path / "s.json", code=1)


def test_ranges_of_the_program_are_steps(flatout: str, tmp_path: Path) -> None:
    """The outermost of those that are named so, and not what was done once."""
    job = Job()
    begin = job.now
    for k in range(10):
        first = job.now
        for _ in range(4):
            at = job.now
            job.host(200, "aten::mm")
            job.slice("user_annotation", "batch", at, job.now)
        job.host(50, "Optimizer.step#SGD.step", "user_annotation")
        job.slice("user_annotation", f"train_step_{k}", first, job.now)
    job.slice("user_annotation", "step", begin, job.now)
    trace = next(iter(summary(flatout, job.write(tmp_path / "t.json"))["traces"].values()))
    assert trace["steps_from"] == "ranges"
    assert [(s["name"], s["wall_us"]) for s in trace["steps"]] == [(f"train_step_{k}", 850) for k in range(10)]


def test_what_lies_between_two_ranges_is_the_later_ones(flatout: str, tmp_path: Path) -> None:
    job = Job()
    for k in range(12):
        job.slice("user_annotation", LOADER, job.now, job.now + 9000)
        job.now += 9000
        begin = job.now
        for _ in range(10):
            job.host(100, "aten::mm")
        job.slice("user_annotation", "train_step", begin, job.now)
    found = summary(flatout, job.write(tmp_path / "t.json"))
    steps = next(iter(found["traces"].values()))["steps"]
    assert [(s["wall_us"], s["input_wait_us"]) for s in steps[1:]] == [(10_000, 9000)] * 11
    assert found["verdict"] == "input.too_few_workers"


def test_batches_that_python_makes_are_no_work_of_the_step(flatout: str, tmp_path: Path) -> None:
    """The thread that makes them ahead works most of the time; the training thread does nothing that was recorded."""
    job = Job()
    for _ in range(60):
        job.slice("cpu_op", "PyFunc:PyFunc", job.now, job.now + 9000, tid=2)
        job.host(300, "MatMul")
        job.now += 9700
    assert summary(flatout, job.write(tmp_path / "t.json"))["verdict"] == "none"


def test_the_optimizers_steps_do_not_make_a_difference_of_start_up(flatout: str, tmp_path: Path) -> None:
    """Times of a step hold nothing of what came before the first."""
    old = optimizer_steps(tmp_path / "old.json", (10, 0))
    new = optimizer_steps(tmp_path / "new.json", (20, 0), rounds=30)
    found = json.loads(run(flatout, "diff", "--json", old, new))
    mm = next(row for row in found["slower"] if row["name"] == "aten::mm")
    assert (mm["a_us"], mm["b_us"], mm["count_a"], mm["count_b"]) == (1000, 2000, 110, 580)
    assert "aten::empty" not in json.dumps(found)


# ---- what is told where nothing is found ----


def test_a_range_of_the_programs_own_is_named_where_most_of_the_time_goes(flatout: str, tmp_path: Path) -> None:
    def step(job: Job) -> None:
        for _ in range(10):
            job.host(10, "aten::mm")
        job.host(900, "evaluate", "user_annotation")

    found = summary(flatout, steps_of(tmp_path / "t.json", step))
    assert found["verdict"] == "none"
    assert "passes in evaluate" in found["headline"] and "with_stack" in found["headline"]
    assert "ProfilerStep" not in found["headline"]


def test_a_step_that_takes_longer_than_all_others_is_named(flatout: str, tmp_path: Path) -> None:
    def step(job: Job) -> None:
        for _ in range(10):
            job.host(10, "aten::mm")
        job.host(40_000 if "ProfilerStep#6" in str(job.events[-12:]) else 900, "evaluate", "user_annotation")

    found = summary(flatout, steps_of(tmp_path / "t.json", step))
    assert found["verdict"] == "none" and "ProfilerStep#7 alone takes 40.1 ms" in found["headline"], found["headline"]


def test_a_python_profile_of_viztracers_is_read(flatout: str, tmp_path: Path) -> None:
    job = Job()
    for _ in range(60):
        begin = job.now
        job.slice("fee", "time.sleep", begin + 1, begin + 900)
        job.slice("fee", "load (/home/u/my data/train.py:12)", begin, begin + 901)
        job.now += 1000
    found = summary(flatout, job.write(tmp_path / "t.json"))
    assert found["verdict"] == "stall.idle_wait"
    assert found["findings"][0]["where"] == {"file": "/home/u/my data/train.py", "line": 12, "function": "load"}
    assert found["findings"][0]["evidence"][0]["value"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("head, tool", [(b"\xfd7zXZ\0", "xz -dc"), (b"BZh9", "bzip2 -dc"), (b"\x28\xb5\x2f\xfd", "zstd -dc"),
                                        (b"PK\3\4", "unzip -p"), (b"\xff\xfe{\0", "iconv")])
def test_what_is_packed_otherwise_is_told_how_to_unpack(flatout: str, tmp_path: Path, head: bytes, tool: str) -> None:
    (tmp_path / "t").write_bytes(head + bytes(range(200)))
    assert tool in run(flatout, "summary", tmp_path / "t", code=1)

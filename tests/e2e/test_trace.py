"""flatout trace: verdicts on traces whose cause is known, and what it writes can be read again."""

import gzip
import json
import os
import re
import sqlite3
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest
from trace_jobs import Job, fine, run, steps_of, summary

pytestmark = pytest.mark.parallel

OWN = Path(__file__).resolve().parents[1] / "traces"


def third_party(*names: str) -> list[Path]:
    folder = os.environ.get("FLATOUT_TRACES")
    if not folder:
        pytest.skip("FLATOUT_TRACES names no folder with traces")
    return [Path(folder) / name for name in names]


@pytest.mark.parametrize(
    "file, verdict",
    [
        ("torch_cpu/torch_cpu_input_bound.json.gz", "input.too_few_workers"),
        ("torch_cpu/torch_cpu_python_bound.json.gz", "cpu.python_bound"),
        ("tensorflow/tf1_timeline_feed.json.gz", "input.feed_dict"),
        ("tensorflow/tf1_timeline_feed.runmetadata.pb", "input.feed_dict"),
        ("tensorflow/tf2_keras_slow_input.xplane.pb", "input.feed_dict"),
        ("tensorflow/tf2_keras_slow_input.trace.json.gz", "input.feed_dict"),
    ],
)
def test_the_injected_cause_is_the_verdict(flatout, file, verdict):
    assert summary(flatout, OWN / file)["verdict"] == verdict


def test_python_is_blamed_by_its_line(flatout):
    where = summary(flatout, OWN / "torch_cpu/torch_cpu_python_bound.json.gz")["findings"][0]["where"]
    assert (where["file"], where["line"], where["function"]) == ("mk_torch.py", 35, "inner")


@pytest.mark.parametrize(
    "file, verdict",
    [
        ("kineto_resnet50_nw0/rank0.json.gz", "input.too_few_workers"),
        ("kineto_resnet50_nw4/rank0.json.gz", "gpu.launch_bound"),
        ("hta_nccl_a100/rank0.json.gz", "gpu.launch_bound"),
        ("hta_ns_v100/rank0.json.gz", "healthy"),
        ("hta_diff_control_a100/rank3.json.gz", "dist.exposed_communication"),
        ("param_linear_2080ti/rank0.json.gz", "gpu.launch_bound"),
        ("tl_owlv2_h100/rank0.json.gz", "input.decode_cpu"),
        ("tl_owlv2_mi300/rank0.json.gz", "input.decode_cpu"),
        ("tl_eager_b200/rank0.json.gz", "gpu.launch_bound"),
        ("tl_vllm_graph/rank0.json.gz", "healthy"),
    ],
)
def test_the_cause_of_third_parties_traces(flatout, file, verdict):
    assert summary(flatout, *third_party(file))["verdict"] == verdict


def test_no_straggler_where_there_is_none(flatout):
    ranks = third_party(*(f"param_dlrm_8rank/rank{k}.json.gz" for k in range(8)))
    assert summary(flatout, *ranks)["stragglers"] == []


def rank_trace(path: Path, rank: int, late_us: int) -> None:
    """Ten steps of 10 ms of compute, then an all-reduce that ends for all at once."""
    events, begin = [], rank * 12_345  # clocks that do not agree
    for step in range(10):
        t = begin + step * 12_000
        own = 10_000 + (late_us if rank == 3 else 0)
        end = 10_500 + late_us
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": t, "dur": 12_000})
        for name, at, length, correlation in (("gemm", 0, own, 1), ("ncclDevKernel_AllReduce_Sum_f32", own, end - own, 2)):
            number = step * 10 + correlation
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": t, "dur": 5,
                           "args": {"correlation": number}})
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": t + at, "dur": length,
                           "args": {"device": 0, "stream": 7, "correlation": number}})
    # Enough work to judge by.
    events += [{"ph": "X", "cat": "kernel", "name": "tiny", "pid": 0, "tid": 8, "ts": begin + k, "dur": 1,
                "args": {"device": 0, "stream": 8}} for k in range(60)]
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}))


@pytest.mark.parametrize("late_us, expected", [(1000, [3]), (0, [])])
def test_only_a_straggler_is_called_one(flatout, tmp_path, late_us, expected):
    files = [tmp_path / f"rank{rank}.json" for rank in range(4)]
    for rank, file in enumerate(files):
        rank_trace(file, rank, late_us)
    found = summary(flatout, *files)
    assert [s["rank"] for s in found["stragglers"]] == expected
    if expected:
        assert found["stragglers"][0]["delay_us"] == pytest.approx(late_us, rel=0.15)
        assert found["stragglers"][0]["waiting"] == [0, 1, 2]


def events_of(path: Path) -> list[dict]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]


def test_chrome_to_chrome_loses_nothing(flatout, tmp_path):
    source = OWN / "torch_cpu/torch_cpu_python_bound.json.gz"
    run(flatout, "convert", source, "-o", tmp_path / "out.json.gz")
    before = json.loads(gzip.decompress(source.read_bytes()))
    after = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))
    assert after == before


def test_a_cut_file_becomes_whole(flatout, tmp_path):
    text = gzip.decompress((OWN / "torch_cpu/torch_cpu_input_bound.json.gz").read_bytes())
    (tmp_path / "cut.json").write_bytes(text[: len(text) // 2] + b"\x01\xff")
    run(flatout, "convert", tmp_path / "cut.json", "-o", tmp_path / "whole.json")
    assert len(events_of(tmp_path / "whole.json")) > 500


@pytest.mark.parametrize("name", ["input_bound", "python_bound"])
def test_perfetto_keeps_the_figures(flatout, tmp_path, name):
    source = OWN / f"torch_cpu/torch_cpu_{name}.json.gz"
    run(flatout, "convert", source, "-o", tmp_path / "out.pftrace")
    a = summary(flatout, source)
    b = summary(flatout, tmp_path / "out.pftrace")
    assert b["verdict"] == a["verdict"]
    one, two = next(iter(a["traces"].values())), next(iter(b["traces"].values()))
    assert two["steps"] == one["steps"]
    assert two["x_events_by_cat"] == one["x_events_by_cat"]
    assert [f.get("where") for f in b["findings"]] == [f.get("where") for f in a["findings"]]


def test_a_slice_holds_its_steps_alone(flatout, tmp_path):
    source = OWN / "torch_cpu/torch_cpu_input_bound.json.gz"
    run(flatout, "slice", source, "--step", "3-4", "-o", tmp_path / "out.json")
    before = {e["name"]: e for e in events_of(source) if str(e["name"]).startswith("ProfilerStep") and e["ph"] == "X"}
    begin, end = before["ProfilerStep#3"]["ts"], before["ProfilerStep#4"]["ts"] + before["ProfilerStep#4"]["dur"]
    for e in events_of(tmp_path / "out.json"):
        assert e["ph"] == "M" or (e["ts"] < end and e["ts"] + e.get("dur", 0) >= begin)
    assert "before it begins" in run(flatout, "slice", source, "--from", "300", "--to", "100", "-o", tmp_path / "x.json", code=2)
    assert "no step 99" in run(flatout, "slice", source, "--step", "99", "-o", tmp_path / "x.json", code=1)


def test_a_window_that_holds_nothing_is_said(flatout, tmp_path):
    source = OWN / "torch_cpu/torch_cpu_input_bound.json.gz"
    words = [flatout, "trace", "slice", source, "--from", "99999", "-o", tmp_path / "out.json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "has nothing in that window" in done.stderr


def test_a_recording_of_nothing_is_said_and_gives_the_commands_own_code(flatout, tmp_path):
    def record(*command: str) -> subprocess.CompletedProcess:
        words = [flatout, "trace", "record", "-o", tmp_path / "out.json", "--", *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    done = record("sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert "neither CUDA nor NVTX" in done.stderr and not (tmp_path / "out.json").exists()
    assert record("sh", "-c", "kill -9 $$").returncode == 128 + 9
    missing = record("no-such-program-here")
    assert missing.returncode == 127 and "CUDA" not in missing.stderr


def test_a_trace_does_not_differ_from_itself(flatout):
    source = OWN / "torch_cpu/torch_cpu_python_bound.json.gz"
    same = json.loads(run(flatout, "diff", "--json", source, source))
    assert same["slower"] == [] and same["faster"] == []


def test_what_is_no_trace_gets_one_clear_line(flatout, tmp_path):
    (tmp_path / "x").write_text("not a trace")
    for words in (["summary", tmp_path / "x"], ["summary", tmp_path / "gone"], ["summary", tmp_path]):
        done = subprocess.run([flatout, "trace", *map(str, words)], capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2) and "flatout: error" in done.stderr and "Traceback" not in done.stderr


# ---- the page ----


def opened(browser, file: Path, problems: list[str], width: int = 1200):
    """The page, offline; what goes wrong on it is added to `problems`."""
    page = browser.new_context(viewport={"width": width, "height": 900}, offline=True).new_page()
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("dialog", lambda d: (problems.append(f"dialog: {d.message}"), d.dismiss()))
    page.on("request", lambda r: problems.append(r.url) if r.url.split("#")[0] != file.as_uri() else None)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=10000)
    return page


# What the first track shows, as text that differs where the picture does.
PIXELS = "document.querySelector('#view .track canvas').toDataURL()"


def becomes(page, pixels: str, equal: bool) -> None:
    """Waits until the first track shows this picture, or another."""
    page.wait_for_function(f"(pixels) => ({PIXELS} === pixels) === {str(equal).lower()}", arg=pixels, timeout=10000)


def test_the_page_shows_the_verdict_and_a_timeline_to_look_into(flatout, browser, tmp_path):
    trace = OWN / "torch_cpu/torch_cpu_python_bound.json.gz"
    out = tmp_path / "page.html"
    assert run(flatout, "report", trace, "-o", out) == f"{out}\n"
    problems: list[str] = []
    page = opened(browser, out, problems)
    assert page.locator("#verdict code").first.inner_text() == summary(flatout, trace)["verdict"]
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_function("() => { const c = document.createElement('canvas'), t = document.querySelector('#view .track canvas');"
                           " c.width = t.width; c.height = t.height; return t.toDataURL() !== c.toDataURL(); }")
    whole = page.evaluate(PIXELS)
    page.locator("#search").fill("ProfilerStep")
    becomes(page, whole, equal=False)  # what is not searched for is dimmed
    page.locator("#search").fill("")
    becomes(page, whole, equal=True)
    page.locator("#place").select_option(index=1)
    becomes(page, whole, equal=False)  # the place fills the view
    page.locator("#view").focus()
    page.keyboard.press("0")
    becomes(page, whole, equal=True)
    box = page.locator("#view .track canvas").first.bounding_box()
    x, info = box["x"] + box["width"] / 2, page.locator("#slice-info")
    for y in range(int(box["y"]) + 8, int(box["y"] + box["height"]), 16):  # row by row
        page.mouse.move(x, y)
        if "ProfilerStep" in info.inner_text():
            break
    assert "ProfilerStep" in info.inner_text()
    page.mouse.dblclick(x, y)
    becomes(page, whole, equal=False)  # the slice fills the view
    assert problems == []


def test_names_in_a_trace_cannot_run_as_code(flatout, browser, tmp_path):
    name = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
    events = [{"ph": "X", "cat": "cpu_op", "name": name, "pid": name, "tid": name, "ts": i * 10, "dur": 8}
              for i in range(50)]
    (tmp_path / "hostile.json").write_text(json.dumps({"traceEvents": events}))
    out = tmp_path / "page.html"
    run(flatout, "report", tmp_path / "hostile.json", "-o", out)
    problems: list[str] = []
    page = opened(browser, out, problems, width=390)
    assert page.locator("#view .track").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert problems == []


def test_a_page_needs_a_name(flatout):
    assert "no output is named" in run(flatout, "report", OWN / "torch_cpu/torch_cpu_python_bound.json.gz", code=2)


# ---- causes that are built into a trace, and what only looks like them ----


def launches_too_slowly(job: Job) -> None:
    for _ in range(60):
        job.host(30, "aten::add")
        job.launch("tiny", 3)
    job.wait()


def reads_back(job: Job) -> None:
    for _ in range(10):
        job.host(10, "aten::mm")
        job.launch("gemm", 200)
        job.wait()
        job.host(1500)


def copies_pageable(job: Job) -> None:
    job.launch("Memcpy HtoD (Pageable -> Device)", 3000, category="gpu_memcpy", bytes=30_000_000)
    fine(job)


def copies_pinned(job: Job) -> None:
    job.launch("Memcpy HtoD (Pinned -> Device)", 3000, category="gpu_memcpy", bytes=30_000_000)
    fine(job)


def copies_beside(job: Job) -> None:
    job.launch("Memcpy HtoD (Pinned -> Device)", 3000, stream=20, category="gpu_memcpy", bytes=30_000_000)
    fine(job)


def communicates_after(job: Job) -> None:
    fine(job)
    job.launch("ncclDevKernel_AllReduce_Sum_f32", 3000, stream=20)
    job.wait()


def communicates_beside(job: Job) -> None:
    job.launch("ncclDevKernel_AllReduce_Sum_f32", 3000, stream=20)
    fine(job)


def norms(job: Job) -> None:
    for _ in range(20):
        job.launch("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 100)
        job.launch("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 60)
        job.launch("void at::native::vectorized_elementwise_kernel<4, at::native::threshold_kernel_impl>", 60)
        job.launch("gemm", 100)
    job.wait()


def fused_norms(job: Job) -> None:
    for _ in range(20):
        job.launch("void fused_batch_norm_add_relu", 20)
        job.launch("gemm", 300)
    job.wait()


def convolves_on_the_host(job: Job) -> None:
    for _ in range(20):
        job.host(10, "aten::mm")
        job.launch("gemm", 200)
    job.host(12_000, "aten::mkldnn_convolution")


def waits_for_workers(job: Job) -> None:
    job.host(6000, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation")
    fine(job)


def waits_for_a_batch_while_the_device_works(job: Job) -> None:
    for _ in range(20):
        job.launch("gemm", 400)
    job.host(6000, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation")
    job.wait()


def waits_for_each_batch(job: Job) -> None:
    job.host(10_000, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation")
    for _ in range(50):
        job.launch("gemm", 198)
    job.wait()


def test_the_wait_for_the_first_batch_counts_like_any_other(flatout, tmp_path):
    # Half of each step is a wait for its batch; the device's first event comes after the first.
    trace = steps_of(tmp_path / "few.json", waits_for_each_batch, count=2)
    finding = summary(flatout, trace)["findings"][0]
    assert finding["id"].startswith("input.")
    assert finding["gain"] == pytest.approx(2, rel=0.03)
    assert finding["cost_ms_per_step"] == pytest.approx(10, rel=0.03)


@pytest.mark.parametrize("step, same_device", [(waits_for_each_batch, False), (waits_for_each_batch, True), (launches_too_slowly, False)])
def test_ranks_in_one_file_may_count_their_launches_alike(flatout, tmp_path, step, same_device):
    one = steps_of(tmp_path / "one.json", step)
    events = json.loads(one.read_text())["traceEvents"]
    for e in list(events):
        other = json.loads(json.dumps(e))
        on_device = "device" in other["args"]
        other["ts"] += 3
        if not (on_device and same_device):
            other["pid"] += 1 if on_device else 10
            if on_device:
                other["args"]["device"] = 1
        events.append(other)
    both = tmp_path / "both.json"
    both.write_text(json.dumps({"traceEvents": events}))
    expected, found = summary(flatout, one), summary(flatout, both)
    assert found["verdict"] == expected["verdict"]
    assert found["findings"][0]["gain"] == pytest.approx(expected["findings"][0]["gain"], rel=0.02)
    assert found["findings"][0]["cost_ms_per_step"] == pytest.approx(expected["findings"][0]["cost_ms_per_step"], rel=0.02)
    assert not next(iter(found["traces"].values())).get("incomplete")


def replays_a_graph(job: Job, recorded: bool) -> None:
    job.correlation += 1
    job.slice("cuda_runtime", "cudaGraphLaunch", job.now, job.now + 20, correlation=job.correlation)
    if recorded:
        for k in range(5):
            begin = job.now + 30 + k * 800
            job.slice("kernel", "in graph", begin, begin + 795, pid=0, tid=7, device=0, stream=7, correlation=job.correlation)
    else:
        # Now and then something else runs, which was recorded.
        job.slice("cuda_runtime", "cudaLaunchKernel", job.now + 21, job.now + 25, correlation=job.correlation + 10_000)
        for k in range(6):
            job.slice("kernel", "other", job.now + 40 + k * 20, job.now + 42 + k * 20, pid=0, tid=7, device=0, stream=7,
                      correlation=job.correlation + 10_000)
    job.now += 4030


@pytest.mark.parametrize("step, verdict", [
    (fine, "healthy"),
    (launches_too_slowly, "gpu.launch_bound"),
    (reads_back, "gpu.sync"),
    (copies_pageable, "input.h2d_sync"),
    (copies_pinned, "gpu.no_overlap"),
    (copies_beside, "healthy"),
    (communicates_after, "dist.exposed_communication"),
    (communicates_beside, "healthy"),
    (norms, "gpu.unfused_norm"),
    (fused_norms, "healthy"),
    (convolves_on_the_host, "gpu.wrong_device"),
    (waits_for_workers, "input.too_few_workers"),
    (waits_for_a_batch_while_the_device_works, "healthy"),
    (lambda job: replays_a_graph(job, True), "healthy"),
    (lambda job: replays_a_graph(job, False), "none"),
], ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_a_cause_that_was_built_in_is_found(flatout, tmp_path, step, verdict):
    found = summary(flatout, steps_of(tmp_path / "trace.json", step))
    assert found["verdict"] == verdict, found["headline"]


def test_steps_that_two_threads_drew_count_once(flatout, tmp_path):
    once = steps_of(tmp_path / "once.json", launches_too_slowly)
    events = json.loads(once.read_text())["traceEvents"]
    again = [dict(event, tid=2) for event in events if event["name"].startswith("ProfilerStep")]
    twice = tmp_path / "twice.json"
    twice.write_text(json.dumps({"traceEvents": events + again}))
    one, two = (summary(flatout, file)["findings"] for file in (once, twice))
    assert [(f["id"], f["gain"], f["cost_ms_per_step"]) for f in one] == [(f["id"], f["gain"], f["cost_ms_per_step"]) for f in two]


def test_an_incomplete_recording_says_so(flatout, tmp_path):
    file = steps_of(tmp_path / "trace.json", lambda job: replays_a_graph(job, False), count=30)
    trace = next(iter(summary(flatout, file)["traces"].values()))
    assert trace["incomplete"] and trace["unrecorded_launches"] == 30
    assert "left nothing on a device" in run(flatout, "summary", file)


def test_who_waits_for_whom_and_why(flatout, tmp_path):
    files = [tmp_path / f"rank{rank}.json" for rank in range(4)]
    for rank, file in enumerate(files):
        rank_trace(file, rank, 1000)
    found = summary(flatout, *files)
    assert {(w["rank"], w["for"]) for w in found["waits"]} == {(0, 3), (1, 3), (2, 3)}
    assert all(w["us"] == pytest.approx(1000, rel=0.15) for w in found["waits"])
    assert "rank 0 for rank 3" in run(flatout, "summary", *files)


def test_the_critical_path_and_what_would_be_left_of_it(flatout, tmp_path):
    file = steps_of(tmp_path / "trace.json", communicates_after)
    path = next(iter(summary(flatout, file)["traces"].values()))["critical_path"]
    assert path["step"].startswith("ProfilerStep#")
    assert sum(path["parts"].values()) == pytest.approx(path["length_us"], abs=0.01)
    assert path["parts"]["communication_us"] == pytest.approx(3000)
    without = next(w for w in path["what_if"] if w["without"] == "communication" and w["kernel"] is None)
    assert without["saved_us"] == pytest.approx(3000, rel=0.01)
    # The same job without the collective takes as long as was predicted.
    path2 = next(iter(summary(flatout, steps_of(tmp_path / "other.json", fine))["traces"].values()))["critical_path"]
    assert without["length_us"] == pytest.approx(path2["length_us"], rel=0.02)


def test_each_unit_of_a_kernels_time_has_an_owner(flatout, tmp_path):
    def step(job: Job) -> None:
        for shape, length in (([8, 8], 100), ([64, 64], 400)):
            begin = job.now
            job.launch("gemm", length)
            job.host(10)
            job.slice("cpu_op", "aten::mm", begin - 1, job.now, **{"Input Dims": [shape, shape]})
            job.host(5)
        job.wait()

    file = steps_of(tmp_path / "trace.json", step)
    device = next(iter(summary(flatout, file)["traces"].values()))["devices"]["0"]
    assert device["owners"]["operators"][0]["name"] == "aten::mm"
    assert device["top_kernels"][0]["operator"] == "aten::mm"
    by_shape = json.loads(run(flatout, "summary", "--shapes", "--json", file))
    owners = next(iter(by_shape["traces"].values()))["devices"]["0"]["owners"]["operators"]
    assert {o["name"]: o["device_us"] for o in owners} == {"aten::mm [[64, 64], [64, 64]]": 4800, "aten::mm [[8, 8], [8, 8]]": 1200}


# ---- Nsight Systems ----


def as_nsight(events: list[dict], path: Path) -> Path:
    """The same recording as Nsight Systems' export has it; times since the trace's begin, in whole nanoseconds."""
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
          correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
          globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
          globalPid INTEGER, bytes INTEGER, memKind INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
    """)
    names: dict[str, int] = {}
    process = 7 << 24

    def name_id(name: str) -> int:
        if name not in names:
            names[name] = len(names) + 1
            db.execute("INSERT INTO StringIds VALUES (?, ?)", (names[name], name))
        return names[name]

    def whole(text) -> int:
        return int((Decimal(str(text)) * 1000).to_integral_value())

    copies = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
    kinds = {"Pageable": 0, "Pinned": 1, "Device": 2}
    for e in events:
        if e.get("ph") != "X":
            continue
        begin, args = whole(e["ts"]), e.get("args", {})
        end = begin + whole(e.get("dur", 0))
        device = (args.get("device", 0), args.get("stream", 0), args.get("correlation", 0))
        category = e.get("cat")
        if category == "kernel":
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,?,?,?,?,?)", (begin, end, *device, process, name_id(e["name"]), name_id("k")))
        elif category == "gpu_memcpy":
            way, source, target = re.fullmatch(r"Memcpy (\w+) \((\w+) -> (\w+)\)", e["name"]).groups()
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?,?)",
                       (begin, end, *device, process, args.get("bytes"), copies[way], kinds[source], kinds[target]))
        elif category == "gpu_memset":
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?,?,?,?,?,?,?,2)", (begin, end, *device, process, args.get("bytes")))
        elif category in ("cuda_runtime", "cuda_driver"):
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)",
                       (begin, end, process + int(e["tid"]) % (1 << 24), args.get("correlation", 0), name_id(e["name"] + "_v7000")))
        elif category == "user_annotation":
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,?,NULL)", (begin, end, e["name"], process + int(e["tid"]) % (1 << 24)))
    db.commit()
    db.close()
    return path


def same_devices(flatout: str, json_file: Path, database: Path) -> None:
    a = next(iter(summary(flatout, json_file)["traces"].values()))
    b = next(iter(summary(flatout, database)["traces"].values()))
    assert b["format"] == "nsight"
    assert b["steps"] == a["steps"]
    for number, device in a["devices"].items():
        other = b["devices"][number]
        for key in ("span_us", "busy_us", "compute_us", "comm_us", "mem_us", "exposed_comm_us", "n_gaps", "gaps", "streams", "launch"):
            assert other[key] == device[key], (number, key)


@pytest.mark.parametrize("step", [fine, launches_too_slowly, reads_back, copies_pageable, communicates_after, norms, waits_for_workers])
def test_nsight_systems_recording_gives_the_same_figures_and_verdict(flatout, tmp_path, step):
    file = steps_of(tmp_path / "trace.json", step)
    database = as_nsight(json.loads(file.read_text())["traceEvents"], tmp_path / "report.sqlite")
    same_devices(flatout, file, database)
    assert summary(flatout, database)["verdict"] == summary(flatout, file)["verdict"]


def test_a_real_recording_has_the_same_figures_from_nsight_systems(flatout, tmp_path):
    for name in ("hta_nccl_a100", "tl_eager_b200"):
        source = third_party(f"{name}/rank0.json.gz")[0]
        with gzip.open(source, "rt", errors="replace") as text:
            events = json.load(text, parse_float=Decimal)["traceEvents"]
        same_devices(flatout, source, as_nsight(events, tmp_path / f"{name}.sqlite"))


def test_another_database_is_named_and_the_way_out_told(flatout, tmp_path):
    db = sqlite3.connect(tmp_path / "x.sqlite")
    db.execute("CREATE TABLE t (a)")
    db.commit()
    db.close()
    assert "nsys export" in run(flatout, "summary", tmp_path / "x.sqlite", code=1)


# ---- size ----


def test_a_large_file_is_the_same_by_any_number_of_cores(flatout, tmp_path):
    """Beyond some megabytes several threads read a file in pieces."""
    file = steps_of(tmp_path / "trace.json", fine, count=900)
    assert file.stat().st_size > 6_000_000
    texts = set()
    for command in ([], ["taskset", "-c", "0"]):
        done = subprocess.run([*command, flatout, "trace", "summary", "--json", file], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1


def test_a_slice_of_a_large_trace_needs_little_memory(flatout, tmp_path):
    file = steps_of(tmp_path / "trace.json", fine, count=2500)
    peaks = []
    for source in (file, steps_of(tmp_path / "small.json", fine, count=20)):
        process = subprocess.Popen([flatout, "trace", "slice", source, "--step", "3-4", "-o", tmp_path / "out.json"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss)
    # Some threads' pieces, however large the file is: in columns alone it would take 20 MB more.
    assert file.stat().st_size > 17_000_000
    assert peaks[0] - peaks[1] < 40_000

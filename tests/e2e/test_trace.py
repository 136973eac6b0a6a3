"""flatout trace: verdicts on traces whose cause is known, and what it writes can be read again."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

OWN = Path(__file__).resolve().parents[1] / "traces"


def run(flatout: str, *words: str, code: int = 0) -> str:
    done = subprocess.run([flatout, "trace", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def summary(flatout: str, *files: Path) -> dict:
    return json.loads(run(flatout, "summary", "--json", *files))


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


def test_perfetto_keeps_the_figures(flatout, tmp_path):
    source = OWN / "torch_cpu/torch_cpu_input_bound.json.gz"
    run(flatout, "convert", source, "-o", tmp_path / "out.pftrace")
    a = summary(flatout, source)
    b = summary(flatout, tmp_path / "out.pftrace")
    assert b["verdict"] == a["verdict"]
    one, two = next(iter(a["traces"].values())), next(iter(b["traces"].values()))
    assert two["steps"] == one["steps"]
    assert two["x_events_by_cat"] == one["x_events_by_cat"]


def test_a_slice_holds_its_steps_alone(flatout, tmp_path):
    source = OWN / "torch_cpu/torch_cpu_input_bound.json.gz"
    run(flatout, "slice", source, "--step", "3-4", "-o", tmp_path / "out.json")
    before = {e["name"]: e for e in events_of(source) if str(e["name"]).startswith("ProfilerStep") and e["ph"] == "X"}
    begin, end = before["ProfilerStep#3"]["ts"], before["ProfilerStep#4"]["ts"] + before["ProfilerStep#4"]["dur"]
    for e in events_of(tmp_path / "out.json"):
        assert e["ph"] == "M" or (e["ts"] < end and e["ts"] + e.get("dur", 0) >= begin)
    assert "no step 99" in run(flatout, "slice", source, "--step", "99", "-o", tmp_path / "x.json", code=1)


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

"""flatout devmem: the real snapshots' own figures, the table, bad input, and what the arena promises beside the peers."""

import gzip
import json
import pickle
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]
TRACES = sorted((ROOT / "bench" / "devmem" / "traces").glob("*.jsonl.gz"))
SNAPSHOTS = ROOT.parent / "shared" / "snapshots"


def run(flatout: str, *words, code: int = 0, text: str | None = None) -> str:
    done = subprocess.run([flatout, "devmem", *map(str, words)], capture_output=True, text=True, timeout=120, input=text)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def replay(flatout: str, file: Path, *words) -> dict:
    return {r["policy"]: r for r in json.loads(run(flatout, "replay", "--json", *words, file))}


def profile(name: str) -> Path:
    file = ROOT.parent / "shared" / "traces" / name / "rank0.json.gz"
    if not file.exists():
        pytest.skip("../shared/traces is not there")
    return file


def snapshot(name: str) -> Path:
    if not SNAPSHOTS.exists():
        pytest.skip("../shared/snapshots is not there")
    return SNAPSHOTS / name


def test_a_real_recording_takes_what_the_card_measured(flatout):
    found = replay(flatout, snapshot("mem_snapshot.pickle"))
    assert found["torch"]["peak_reserved_bytes"] == 3_781_165_056
    assert found["bound"]["peak_live_bytes"] == 3_249_143_816


def test_blocks_older_than_the_ring_are_inferred(flatout):
    found = replay(flatout, snapshot("memory_forward_fp32_128.pickle"))
    assert found["bound"]["peak_live_bytes"] == 556_843_008


@pytest.mark.parametrize("name, steps", [("tl_owlv2_h100", 1), ("tl_vllm_capture", 0)])
def test_a_profile_holds_what_was_live_before_it_began(flatout, name, steps):
    """The allocator's own count, which each event has, is the ground truth."""
    file = profile(name)
    events = [e for e in json.load(gzip.open(file))["traceEvents"] if e.get("name") == "[memory]" and e["args"]["Device Type"] != 0]
    found = replay(flatout, file)["bound"]
    assert found["peak_live_bytes"] == max(e["args"]["Total Allocated"] for e in events)
    assert found["steps"] == steps


def test_a_profile_without_addresses_is_an_error(flatout):
    told = run(flatout, "replay", profile("kineto_resnet50_nw4"), code=1)
    assert 'no "Addr"' in told and "_dump_snapshot" in told


@pytest.mark.parametrize("file", TRACES, ids=lambda f: f.name.partition(".")[0])
def test_the_arena_takes_no_more_than_the_peers_that_grow(flatout, file):
    found = replay(flatout, file)
    assert list(found) == ["tf_growth", "tf_all", "torch", "torch_expandable", "arena", "bound"]
    for peer in ("tf_growth", "torch", "torch_expandable"):
        assert found["arena"]["peak_reserved_bytes"] <= found[peer]["peak_reserved_bytes"]
        assert found["arena"]["smallest_card_bytes"] <= found[peer]["smallest_card_bytes"]
    for policy in found.values():
        assert not policy["failed"] and policy["smallest_card_bytes"] >= policy["peak_live_bytes"]


def test_a_card_that_is_too_small_is_said(flatout, tmp_path):
    trace = tmp_path / "t.jsonl.gz"
    trace.write_bytes(gzip.compress(b'{"op":"meta","name":"two"}\n{"op":"a","id":1,"size":300000000}\n{"op":"a","id":2,"size":300000000}\n'))
    assert all(r["failed"] for r in replay(flatout, trace, "--card", "512MiB").values())
    assert not any(r["failed"] for r in replay(flatout, trace, "--card", "1GiB").values())
    assert "ran out of memory" in run(flatout, "replay", "--card", "512MiB", trace)


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "empty"),
        (b'{"op":"a","id":1,"size":4}\n{"op":"a"', "line 2"),
        (pickle.dumps(Path("x"), 4), "classes"),
        (pickle.dumps({"a": 1}, 4), "segments"),
        (pickle.dumps({"segments": []}, 4)[:-3], "cut off"),
        (gzip.compress(b'{"op":"a","id":1,"size":4}\n' * 1000)[:40], "gzip"),
        (b'{"traceEvents": []}', "no memory events"),
    ],
    ids=["empty", "cut_line", "class", "no_snapshot", "cut_pickle", "cut_gzip", "no_events"],
)
def test_bad_input_is_one_clear_error(flatout, tmp_path, content, says):
    file = tmp_path / "bad"
    file.write_bytes(content)
    said = run(flatout, "replay", file, code=1)
    assert says in said and str(file) in said


def test_a_missing_file_is_named(flatout):
    assert "/no/such/file" in run(flatout, "replay", "/no/such/file", code=1)


def test_explain_reads_standard_input_and_answers_in_the_fixed_form(flatout):
    log = "Traceback (most recent call last):\nRuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
    found = json.loads(run(flatout, "explain", "--json", text=log))
    assert list(found) == ["kind", "finding", "sure", "text", "holders", "advice"]
    assert found["kind"] == "cublas_not_initialized" and found["finding"] == "gpu.memory_taken"
    nothing = json.loads(run(flatout, "explain", "--json", text="epoch 3: loss 0.2\n"))
    assert nothing["kind"] == "unknown" and nothing["finding"] is None and nothing["advice"] == []


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_what_does_not_fit_into_memory_is_an_error(flatout, tmp_path, command):
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.write(b"\x80\x04")  # as a snapshot begins
        out.truncate(3 << 30)
    done = subprocess.run(["sh", "-c", f"ulimit -v 2000000; exec {flatout} devmem {command} {file}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "not enough memory" in done.stderr, done


def test_a_log_is_explained_in_less_memory_than_it_is_long(flatout, tmp_path):
    """1 GiB of steps and then an error, unpacked from parts that are alike; explained within 500 MB of addresses."""
    file = tmp_path / "train.log.gz"
    steps = gzip.compress(b"epoch 3 step 1234/9999 loss 0.1234 lr 0.0001 of the job as it goes on\n" * 120_000)
    error = b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
    file.write_bytes(steps * 128 + gzip.compress(error))
    done = subprocess.run(["sh", "-c", f"ulimit -v 500000; exec {flatout} devmem explain {file}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("cublas_alloc_failed (gpu.oom_too_big)"), done


def test_a_snapshot_with_a_failure_is_explained_by_its_holes(flatout, tmp_path):
    gib = 1 << 30
    blocks = []
    for number in range(16):  # every second of 16 blocks of 512 MiB is free
        state = "inactive" if number % 2 else "active_allocated"
        frames = [{"name": "forward", "filename": "model.py", "line": 17}]
        blocks.append({"address": number * gib // 2, "size": gib // 2, "requested_size": gib // 2, "state": state, "frames": frames})
    data = {
        "segments": [{"device": 0, "address": 0, "total_size": 8 * gib, "stream": 0, "blocks": blocks}],
        "device_traces": [[{"action": "oom", "addr": gib // 4, "size": gib, "stream": 0}]],
    }
    file = tmp_path / "s.pickle"
    file.write_bytes(pickle.dumps(data))
    found = json.loads(run(flatout, "explain", "--json", file))
    assert found["kind"] == "torch_oom_fragmented" and found["finding"] == "gpu.oom_fragmented"
    assert {"what": "model.py:17 forward", "bytes": 4 * gib} in found["holders"]


def test_the_picture_names_lines_and_the_moment_of_failure(flatout, tmp_path):
    def event(action: str, address: int, size: int, line: int) -> dict:
        frames = [{"name": "alloc", "filename": "alloc.cpp", "line": 1}, {"name": "forward", "filename": "model.py", "line": line}]
        return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}

    mib = 1 << 20
    events = [event("alloc", i * 100 * mib, 100 * mib, 17 + i % 2) for i in range(8)] + [event("oom", 0, 512 * mib, 30)]
    file = tmp_path / "s.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    page = tmp_path / "memory.html"
    run(flatout, "replay", "--card", "700MiB", "--html", page, file)
    text = page.read_text()
    for said in ("model.py:17 forward", "model.py:18 forward", "512 MiB more were refused when 800 MiB were live, at model.py:30 forward", "no allocator fits"):
        assert said in text
    assert "/no/such" in run(flatout, "replay", "--html", "/no/such/memory.html", file, code=1)


def steps_with(batch: int, tmp_path: Path) -> Path:
    """Three training steps of a made-up model as JSON lines: 40 MiB of weights, and for each sample three activations."""
    lines, key = [{"op": "a", "id": 0, "size": 40 << 20}], 0
    for _ in range(3):
        lines.append({"op": "mark"})
        ids = [key := key + 1 for _ in range(3)]
        lines += [{"op": "a", "id": i, "size": size * batch} for i, size in zip(ids, (1_000_001, 700_000, 350_000))]
        lines += [{"op": "f", "id": i} for i in reversed(ids)]
    path = tmp_path / f"batch{batch}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_largest_batch_fits_and_the_next_one_does_not(flatout, tmp_path):
    words = [f"{b}={steps_with(b, tmp_path)}" for b in (8, 16)]
    found = json.loads(run(flatout, "batch", "--card", "1GiB", "--beside", "200MiB", "--json", *words))
    assert found["basis"] == "each_request" and found["from"] == [8, 16]
    assert found["per_sample_bytes"] == pytest.approx(2_050_001, abs=2)
    for row in found["policies"]:
        at = [replay(flatout, steps_with(row["largest_batch"] + more, tmp_path), "--card", "824MiB") for more in (0, 1)]
        assert [r[row["policy"]]["failed"] for r in at] == [False, True], row
    alone = json.loads(run(flatout, "batch", "--card", "1GiB", "--json", words[0]))
    assert alone["basis"] == "one_run" and 8 <= alone["policies"][0]["largest_batch"]


@pytest.mark.parametrize("words, said", [
    (["8=FILE"], "size of the card is needed"),
    (["8=FOLDER"], "is not a run folder"),
    (["--card", "1GiB", "FILE"], "BATCH=FILE"),
    (["--card", "1GiB", "0=FILE"], "of which batch size"),
    (["--card", "1GiB", "8=FILE", "8=FILE"], "both files are of batch 8"),
    (["--card", "1GiB", "--beside", "2GiB", "8=FILE"], "leaves nothing of the card"),
    (["--card", "1GiB", "8=/nowhere"], "/nowhere"),
])  # fmt: skip
def test_a_batch_that_is_asked_wrongly_gets_an_answer_that_helps(flatout, tmp_path, words, said):
    file = str(steps_with(8, tmp_path))
    done = subprocess.run([flatout, "devmem", "batch", *(w.replace("FILE", file).replace("FOLDER", str(tmp_path)) for w in words)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr


def test_how_a_step_grows_with_the_batch(flatout, tmp_path):
    words = []
    for batch in (8, 32):
        done = subprocess.run([flatout, "run", "--quiet", "--out", tmp_path / str(batch), "--", flatout, "train", "--batch", str(batch), "--steps", "60"],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        words.append(f"{batch}={tmp_path / str(batch)}")
    found = json.loads(run(flatout, "batch", "--json", *words))["time"]
    assert [p["batch"] for p in found["points"]] == [8, 32]
    # Two points lie on their line, unless a part would be less than nothing.
    if found["fixed_ms"] > 0 and found["per_sample_ms"] > 0:
        for p in found["points"]:
            assert found["fixed_ms"] + p["batch"] * found["per_sample_ms"] == pytest.approx(p["step_ms"], rel=1e-6)
    assert "samples/s" in run(flatout, "batch", *words)
    assert "one batch size" in run(flatout, "batch", words[0], words[0], code=2)
    wrong = subprocess.run([flatout, "devmem", "batch", words[0], f"64={tmp_path / '32'}"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 0 and "with a batch of 64, but its steps had 32 samples" in wrong.stderr

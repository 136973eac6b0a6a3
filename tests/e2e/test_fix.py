"""flatout fix on real jobs: what helps is found and kept, healthy jobs are left alone, and the user's files are as
they were, also when flatout is killed in the middle.

The jobs of tests/jobs that have a remedy run with FLATOUT_ALL_JOBS=1 only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

import launch
from cases import CASES
from remedied import changed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Collects garbage over many objects in each step, and does to its folder all that jobs do.
JOB = """
    import gc, os, sys, torch
    keep = [{"i": i, "l": [i]} for i in range(120_000)]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 64)
    os.makedirs("out/deep", exist_ok=True)
    if os.path.exists("precious.txt"):
        os.remove("precious.txt")
    for step in range(1_000_000):
        loss = (model(x) - x).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        gc.collect()
        with open("log.txt", "a") as log:
            log.write(f"{step} {float(loss)}\\n")
        if step % 20 == 0:
            torch.save(model.state_dict(), "out/deep/tmp.pt")
            os.replace("out/deep/tmp.pt", "out/last.pt")
"""


def tree(folder: Path) -> dict:
    """Everything below a folder: kinds, sizes, times, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, content)
    return found


def processes_with(word: str) -> list[str]:
    """Command lines of processes that name `word`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(f"{entry.name} {line}")
    return found


def script_of(job: Path) -> Path:
    """The job's script: no other process of the machine has this name on its command line."""
    return job / f"train_{job.stat().st_ino}_{os.getpid()}.py"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder as a user has it, with the job in it."""
    folder = tmp_path / "project"
    folder.mkdir()
    script_of(folder).write_text(textwrap.dedent(JOB))
    (folder / "log.txt").write_text("of yesterday\n")
    (folder / "precious.txt").write_text("results\n")
    return folder


def can_isolate() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def fix(flatout: str, folder: Path, *words: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run([flatout, "fix", "--out", str(folder.parent / "result"), *words], cwd=folder, text=True,
                          capture_output=True, timeout=400, check=False, **more)


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
def test_finds_the_remedy_and_touches_nothing(flatout: str, job_python: str, job: Path) -> None:
    before, script = tree(job), script_of(job).name
    done = fix(flatout, job, "--budget", "120", "--skip", "priority,allocator_anyway,background_save", "--", job_python,
               script)
    assert done.returncode == 0, done.stderr
    assert tree(job) == before
    assert not processes_with(str(job)) and not processes_with(script)
    result = json.loads((job.parent / "result" / "fix.json").read_text())
    assert result["files_isolated"]
    assert "gc" in result["kept"], done.stdout + done.stderr
    trial = next(t for t in result["trials"] if t["remedy"] == "gc")
    assert trial["verdict"] == "better" and trial["finding"] == "cpu.gc" and trial["low"] > 1.02
    assert trial["losses"] == "bit-equal"  # it is seeded, and the remedy's class is exact
    assert "gc" in done.stdout and "flatout run --with" in done.stdout
    page = (job.parent / "result" / "fix.html").read_text()
    runs = sum(len(t["steps_ms_without"]) + len(t["steps_ms_with"]) for t in result["trials"])
    assert page.count('class="median"') == runs and "gc: better, kept" in page
    # The second run has the remedy without flatout looking for one.
    script = "import gc; print(gc.get_threshold()[0])"
    with_it = subprocess.run([flatout, "run", "--quiet", "--out", str(job.parent / "run"), "--with",
                              str(job.parent / "result" / "fix.json"), "--", job_python, "-c", script],
                             capture_output=True, text=True, check=True)
    assert int(with_it.stdout) >= 20000


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle_leaves_nothing(flatout: str, job_python: str, job: Path, how: signal.Signals) -> None:
    before, script = tree(job), script_of(job).name
    others = set(Path("/var/tmp").glob("flatout-fix-*"))
    running = subprocess.Popen([flatout, "fix", "--out", str(job.parent / "result"), "--", job_python, script],
                               cwd=job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(" fix " not in line for line in processes_with(script)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the job's own process, not flatout, which has its name on its command line
    time.sleep(5)  # it imports, and on a quiet machine writes its files
    running.send_signal(how)
    running.communicate(timeout=60)
    while (left := [p for p in processes_with(script)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert tree(job) == before
    # What a killed one could not remove, the next one does, once the last process of the trial is over.
    while (scratch := set(Path("/var/tmp").glob("flatout-fix-*")) - others) and time.monotonic() < deadline:
        assert fix(flatout, job, "--yes", "--", "false").returncode == 1
    assert not scratch


def test_a_job_that_does_no_steps_is_named(flatout: str, job_python: str, tmp_path: Path) -> None:
    done = fix(flatout, tmp_path, "--yes", "--", job_python, "-c", "raise SystemExit('no data set')")
    assert done.returncode == 1
    assert "0 steps" in done.stderr and "no data set" in done.stderr


def test_no_time_for_any_trial_is_a_failure(flatout: str, job_python: str, job: Path) -> None:
    done = fix(flatout, job, "--yes", "--budget", "3", "--", job_python, script_of(job).name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Nothing was tried, for want of time: gc" in done.stdout and " s more than --budget gave" in done.stdout
    assert "measurably" not in done.stdout


# Big temporaries in each step, and no framework that could tell of steps.
UNMARKED = """
    import numpy as np
    a = np.random.default_rng(0).random(5_000_000)  # above what glibc ever keeps
    w = np.zeros(5_000_000)
    for step in range(1_000_000):
        t = np.sqrt(a * 2 + 1)
        w -= 1e-3 * (t - a)
"""


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
def test_a_job_whose_steps_nobody_marks_is_tried_too(flatout: str, job_python: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(UNMARKED))
    done = fix(flatout, tmp_path, "--budget", "60", "--skip", "priority,allocator", "--", job_python, "job.py", "two words")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path.parent / "result" / "fix.json").read_text())
    trial = next(t for t in result["trials"] if t["finding"] == "mem.page_faults")
    assert len(trial["steps_ms_without"]) >= 2 <= len(trial["steps_ms_with"])
    for run in trial["steps_ms_without"] + trial["steps_ms_with"]:
        assert len(run) >= 20
    assert "job.py &#39;two words&#39;" in (tmp_path.parent / "result" / "fix.html").read_text()
    assert not result["kept"] or "job.py 'two words'" in done.stdout


# Collects garbage in each step, waits a little, and needs nothing but Python.
COLLECTS = """
    import gc, time
    junk = [[i] for i in range(400_000)]
    def step():
        gc.collect()
        time.sleep(0.002)
    for i in range(1_000_000):
        step()
"""


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
def test_the_collector_of_a_job_without_a_framework_is_tried_and_what_is_left_is_said(flatout: str, job_python: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(COLLECTS))
    done = fix(flatout, tmp_path, "--budget", "75", "--skip", "priority,allocator_anyway", "--", job_python, "job.py")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path.parent / "result" / "fix.json").read_text())
    assert result["kept"] == ["gc"], done.stdout + done.stderr
    assert "stall.idle_wait" in [f["id"] for f in result["unanswered"]], done.stdout
    assert "by hand only" in done.stdout and "job.py:6: " in done.stdout


def test_flatout_run_is_no_job_to_fix(flatout: str, tmp_path: Path) -> None:
    done = fix(flatout, tmp_path, "--", flatout, "run", "--", "true")
    assert done.returncode == 2 and "without `flatout run`" in done.stderr


@pytest.mark.parametrize("name", ["fix.json", "fix.html", "flatout.env"])
def test_somebody_elses_file_is_left_alone(flatout: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    done = subprocess.run([flatout, "fix", "--", "true"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and name in done.stderr
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: '{"mine": 1}'}


def test_a_folder_that_cannot_be_made_is_told_before_the_first_run(flatout: str, tmp_path: Path) -> None:
    done = subprocess.run([flatout, "fix", "--yes", "--out", "no/where", "--", "sh", "-c", "touch /dev/shm/$1", "sh", tmp_path.name],
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no/where" in done.stderr
    assert not (Path("/dev/shm") / tmp_path.name).exists()


# Writes its words into all files that it is given, says of each whether it could, and ends.
WRITER = """
    import sys
    for path in sys.argv[1:]:
        try:
            with open(path, "a") as file:
                file.write("of a trial\\n")
            said = "written"
        except OSError as error:
            said = str(error)
        print(path, said, end="; ")
    raise SystemExit(5)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not can_isolate(), reason="lacks root and mount namespaces")
def test_folders_of_the_system_are_not_written(flatout: str, job_python: str, tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(textwrap.dedent(WRITER))
    (tmp_path / "large.bin").write_bytes(b"x" * (3 << 20))
    names = [f"{folder}/{tmp_path.name}-flatout-test" for folder in ("/var", "/var/tmp", "/var/lib", "/etc", "/usr/local", "/opt")]
    done = fix(flatout, tmp_path, "--", job_python, "w.py", *names, str(tmp_path / "large.bin"))
    assert done.returncode == 1 and done.stderr.count(" written;") == len(names) + 1, done.stderr
    assert not [name for name in names if Path(name).exists()]
    assert (tmp_path / "large.bin").stat().st_size == 3 << 20
    assert "except below /dev, /run" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not can_isolate(), reason="lacks root and mount namespaces")
def test_a_mount_below_does_not_cost_an_ordinary_user_the_isolation(flatout: str, job_python: str, tmp_path: Path) -> None:
    if subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare", "-Urm", "true"],
                      capture_output=True, check=False).returncode != 0:
        pytest.skip("lacks user namespaces")
    top = Path("/srv") / f"flatout-test-{os.getpid()}"
    inside = f"""
        set -e
        mkdir -p {top}/mounted {top}/own
        mount -t tmpfs none {top}/mounted
        echo mine > {top}/small; truncate -s 3M {top}/large; echo mine > {top}/own/file
        chown -R 65534:65534 {top}; chown root:root {top}/mounted; chmod 777 {top}/mounted
        cp {tmp_path}/w.py {top}/own/w.py
        cd {top}/own
        setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp {flatout} fix --out {top}/result -- \\
            python3 w.py {top}/mounted/new {top}/small {top}/new {top}/own/file {top}/large || true
        rm -rf {top}/result {top}/own/w.py
        find {top} -type f | sort; cat {top}/small {top}/own/file
    """
    (tmp_path / "w.py").write_text(textwrap.dedent(WRITER))
    try:
        done = subprocess.run(["unshare", "-m", "bash", "-c", textwrap.dedent(inside)], capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)
    assert "cannot be kept away" not in done.stderr, done.stderr
    for name in ("mounted/new", "small", "new", "own/file"):
        assert f"{top}/{name} written" in done.stderr, done.stderr
    assert f"{top}/large [Errno 30]" in done.stderr, done.stderr  # too large to be copied: can be read only
    assert done.stdout.splitlines() == [f"{top}/large", f"{top}/own/file", f"{top}/small", "mine", "mine"]


@pytest.mark.parametrize("kind", ["pipe", "file", "open pipe"])
def test_each_run_reads_the_same_standard_input(flatout: str, tmp_path: Path, kind: str) -> None:
    words = [flatout, "fix", "--yes", "--budget", "10", "--out", str(tmp_path / "result"), "--",
             "sh", "-c", 'read a; read b; echo "got $a and $b"; exit 5']
    if kind == "file":
        (tmp_path / "in").write_text("skipped\none\ntwo\n")
        with (tmp_path / "in").open("rb", buffering=0) as file:
            file.seek(8)  # it is read from where it is, and stays there for whoever comes next
            done = subprocess.run(words, stdin=file, capture_output=True, text=True, check=False)
            assert file.tell() == 8
    elif kind == "pipe":
        done = subprocess.run(words, input="one\ntwo\n", capture_output=True, text=True, check=False)
    else:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            running.stdin.write("one\ntwo\n")
            running.stdin.flush()
            stderr = running.stderr.read()  # it does not wait for the end of what never ends
        done = subprocess.CompletedProcess(words, 1, "", stderr)
        assert "has not ended" in stderr
    assert "got one and two" in done.stderr, done.stderr


def test_loader_settings_apply_where_they_may(job_python: str, tmp_path: Path) -> None:
    script = """
        import torch
        from torch.utils.data import DataLoader, IterableDataset, TensorDataset

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(4))

        def main():
            mine = DataLoader(TensorDataset(torch.arange(8)), 4, num_workers=1)
            stream = DataLoader(Stream(), batch_size=2)
            print(mine.num_workers, mine.persistent_workers, mine.prefetch_factor, mine.batch_size, stream.num_workers)
            print([b[0].tolist() for b in mine], len(list(stream)))

        main()
    """
    out, _ = changed(job_python, "num_workers=2,persistent_workers,prefetch_factor=4", script, tmp_path)
    assert out.splitlines() == ["2 True 4 4 0", "[[0, 1, 2, 3], [4, 5, 6, 7]] 2"]


def test_a_save_in_the_background_is_whole_for_whoever_looks(job_python: str, tmp_path: Path) -> None:
    script = """
        import os, shutil, torch
        state = {"w": torch.zeros(2_000_000)}
        torch.save(state, "a.tmp")
        state["w"] += 1                       # the copy was made before
        os.replace("a.tmp", "a.pt")
        print(float(torch.load("a.pt")["w"].sum()))
        torch.save(state, "b.pt")
        shutil.copy("b.pt", "c.pt")
        print(float(torch.load("c.pt")["w"].mean()))
        try:
            torch.save(state, "no/such/folder.pt")
        except OSError as error:
            print(type(error).__name__)
        torch.save(state, "last.pt")          # and the end waits for it
    """
    assert changed(job_python, "background_save", script, tmp_path)[0].split() == ["0.0", "1.0", "FileNotFoundError"]
    whole, _ = changed(job_python, "", "import torch; print(float(torch.load('last.pt')['w'].mean()))", tmp_path)
    assert float(whole) == 1.0


def test_a_save_that_imports_does_not_wait_for_whoever_imports(job_python: str, tmp_path: Path) -> None:
    (tmp_path / "found_late.py").write_text("")
    script = """
        import importlib.abc, sys, threading, time, torch
        begun = threading.Event()

        class Finder(importlib.abc.MetaPathFinder):      # called under the lock of the module that is imported
            def find_spec(self, name, path, target=None):
                if name == "found_late" and threading.current_thread() is threading.main_thread():
                    begun.set()
                    time.sleep(0.3)

        class Thing:
            def __deepcopy__(self, memo):
                return self
            def __reduce__(self):                        # in the thread that saves
                assert threading.current_thread() is not threading.main_thread()
                begun.wait()
                import found_late
                return str, ()

        sys.meta_path.insert(0, Finder())
        sys.path.insert(0, "")
        torch.save({"thing": Thing()}, "a.pt")
        import found_late
        print(torch.load("a.pt", weights_only=False))
    """
    assert changed(job_python, "background_save", script, tmp_path) == ("{'thing': ''}\n", {"background_save"})


def test_a_save_to_a_file_object_is_as_it_would_be(job_python: str, tmp_path: Path) -> None:
    script = """
        import os, torch
        state = {"w": torch.arange(1_000_000.0), "more": [torch.ones(300_000)]}

        def write(path, head):
            with open(path, "wb") as f:
                f.write(head)
                torch.save(state, f)
                state["w"] += 1               # the copy was made before
                f.flush()
                os.fsync(f.fileno())
                f.write(b"tail")
                end = f.tell()
            state["w"] -= 1
            return end

        ends = {write("a", b"head"), write("b", b""), write("b", b"")}
        with open("c.pt", "wb") as f:
            torch.save(state, f)
        os.replace("c.pt", "d.pt")
        print(len(ends), float(torch.load("d.pt")["w"][7]))
    """
    plain, remedied = tmp_path / "plain", tmp_path / "remedied"
    for folder, remedies in ((plain, ""), (remedied, "background_save")):
        folder.mkdir()
        out, applied = changed(job_python, remedies, script, folder)
        assert out.split() == ["2", "7.0"] and applied == ({remedies} if remedies else set())
    for name in ("a", "b", "d.pt"):
        assert (remedied / name).read_bytes() == (plain / name).read_bytes()


def test_a_save_that_begins_can_be_waited_for(job_python: str, tmp_path: Path) -> None:
    script = """
        import os, threading, time, torch
        started = threading.Thread.start

        def slowly(thread):
            if thread.name == "flatout-save":
                time.sleep(0.3)
            started(thread)

        threading.Thread.start = slowly
        with open("log", "w") as log:
            log.write("line")
            log.flush()
            threading.Timer(0.1, os.fsync, [log.fileno()]).start()   # which waits for saves, while one begins
            torch.save({"w": torch.ones(3)}, "a.pt")
            time.sleep(0.5)
        print(float(torch.load("a.pt")["w"].sum()))
    """
    assert changed(job_python, "background_save", script, tmp_path) == ("3.0\n", {"background_save"})


def test_the_agent_does_not_wait_for_a_save_in_the_background(flatout: str, job_python: str, tmp_path: Path) -> None:
    script = """
        import threading, torch
        state = {"w": torch.zeros(50_000_000)}
        with open("a.pt", "wb") as f:
            torch.save(state, f)
            print([t.name for t in threading.enumerate() if t.name == "flatout-save"])
    """
    (tmp_path / "save.py").write_text(textwrap.dedent(script))
    done = subprocess.run([flatout, "run", "--quiet", "--out", str(tmp_path / "run"), "--", job_python, "save.py"], cwd=tmp_path,
                          env={**os.environ, "FLATOUT_REMEDIES": "background_save"}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['flatout-save']"


def test_output_in_the_background_is_complete_and_in_order(job_python: str, tmp_path: Path) -> None:
    script = """
        import subprocess, sys
        for i in range(5000):
            print(i, flush=True)
        subprocess.run([sys.executable, "-S", "-c", "print('child')"], check=True)
        print("end")
    """
    lines = changed(job_python, "background_log", script, tmp_path)[0].split()
    assert lines == [str(i) for i in range(5000)] + ["child", "end"]


def test_scaled_decoding_gives_nearly_the_same_pictures(job_python: str, tmp_path: Path) -> None:
    script = """
        import io
        import numpy as np
        from PIL import Image
        noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((512, 384), Image.BICUBIC).save("a.jpg", quality=95)
        full = Image.open(io.BytesIO(open("a.jpg", "rb").read()))
        full.load()
        lazy = lambda: Image.open("a.jpg").convert("RGB")
        off = lambda a, b: float(np.abs(np.asarray(a, np.int16) - np.asarray(b, np.int16)).mean())
        print(lazy().size, lazy().crop((8, 8, 108, 58)).size)
        print(off(lazy(), full), off(lazy().crop((8, 8, 108, 58)), full.crop((8, 8, 108, 58))))
        print(off(lazy().resize((96, 72)), full.resize((96, 72))))
        box = (37, 21, 437, 321)
        print(off(lazy().crop(box).resize((64, 64), Image.BILINEAR), full.crop(box).resize((64, 64), Image.BILINEAR)))
        open("cut.jpg", "wb").write(open("a.jpg", "rb").read()[:9000])
        try:
            Image.open("cut.jpg").convert("RGB")
        except OSError as error:
            print("truncated" in str(error))
    """
    sizes, exact, whole, crop, cut = changed(job_python, "scaled_decode", script, tmp_path)[0].splitlines()
    assert sizes == "(512, 384) (100, 50)"
    assert exact == "0.0 0.0"  # what is not shrunk is the same to the last bit
    assert cut == "True"  # where the job expects it
    assert 0 < float(whole) < 3 and 0 < float(crop) < 3  # of 255: another filter, no other picture


REMEDIED = {
    "serial_loading": "num_workers", "sixteen_threads": "threads", "decode_two_workers": "keep_decoded",
    "slow_saves": "background_save", "synced_log": "background_log", "collect_each_step": "gc",
    "workers_anew": "persistent_workers", "pinned_by_script": "affinity", "numpy_temporaries": "allocator",
    "one_arena": "arenas",
}


def chosen() -> list:
    if "FLATOUT_ALL_JOBS" not in os.environ:
        return []
    return [c for c in CASES if c.name in REMEDIED or c.name in ("healthy_mlp", "healthy_cnn_serial")]


@pytest.mark.skipif(not can_isolate(), reason="lacks mount namespaces")
@pytest.mark.parametrize("case", chosen(), ids=lambda c: c.name)
def test_each_job_keeps_its_remedy(case, flatout: str, job_python: str, tmp_path: Path) -> None:
    if lacks := launch.lacking(case):
        pytest.skip(f"{case.name} lacks {', '.join(lacks)}")
    done = launch.run(case, prefix=[flatout, "fix", "--skip", "priority", "--out", str(tmp_path), "--"], python=job_python, timeout_s=400,
                      extra=["--seconds", "600"])
    assert done.code == 0, done.output
    result = json.loads((tmp_path / "fix.json").read_text())
    if case.healthy:
        assert result["kept"] == [], done.output
    else:
        assert REMEDIED[case.name] in result["kept"], done.output

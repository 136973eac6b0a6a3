"""flatout explain, check and cache, as a user and a script see them."""

import ctypes
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from colours import assert_told_apart

pytestmark = pytest.mark.parallel

OOM = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    y = net(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.05 GiB is free. Process 4711 has 5.00 GiB memory in use. Including non-PyTorch memory, this process has 1.90 GiB memory in use. Of the allocated memory 1.10 GiB is allocated by PyTorch, and 11.12 MiB is reserved by PyTorch but unallocated.
"""


def run(flatout: str, *words: str, code: int = 0, text: str = "", env: dict | None = None) -> subprocess.CompletedProcess:
    done = subprocess.run([flatout, *map(str, words)], input=text, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == code, done.stderr
    return done


def test_explains_a_file_and_standard_input_alike(flatout: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n" * 1000 + OOM)
    by_file = json.loads(run(flatout, "explain", "--json", log).stdout)
    by_pipe = json.loads(run(flatout, "explain", "--json", text=log.read_text()).stdout)
    assert by_file["kind"] == by_pipe["kind"] == "cuda_out_of_memory"
    assert by_file["finding"] == "gpu.memory_taken"
    assert by_file["holders"][0]["bytes"] == 5 << 30
    assert by_file["seen"][0]["line"] == 1004
    assert {"text", "sure", "advice"} <= by_file.keys()
    assert all(set(a) == {"text", "remedy"} for a in by_file["advice"])


def test_what_is_not_known_is_said_so(flatout: str) -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nWidgetFault: \x1b[31mbent\n'
    answer = json.loads(run(flatout, "explain", "--json", text=log).stdout)
    assert (answer["kind"], answer["finding"], answer["sure"]) == ("unknown", None, 0)
    text = run(flatout, "explain", text=log).stdout
    assert "Not known" in text and "WidgetFault" in text
    assert "\x1b" not in text
    assert json.loads(run(flatout, "explain", "--json", text="step 1\n").stdout)["kind"] == "none"


def test_what_is_no_log_is_not_taken_for_a_good_one(flatout: str, tmp_path: Path) -> None:
    (tmp_path / "random").write_bytes(os.urandom(100_000))
    for arguments, text in ((["explain"], ""), (["explain", "random"], None), (["explain"], "step 1\n")):
        answer = subprocess.run([flatout, *arguments], cwd=tmp_path, input=text.encode() if text is not None else None,
                                capture_output=True, check=True).stdout.decode()
        assert answer.startswith("? "), answer
    endless = run(flatout, "explain", "/dev/zero").stdout
    assert "this is no text" in endless, endless
    good = run(flatout, "explain", text="step 1\nTraining complete\n").stdout
    assert good.startswith(("✓ ", "+ ")), good
    (tmp_path / "bad.py").write_text("x = (\n")
    said = subprocess.run([sys.executable, "bad.py"], cwd=tmp_path, capture_output=True, text=True).stderr
    assert json.loads(run(flatout, "explain", "--json", text=said).stdout)["kind"] == "syntax_error"


def test_both_commands_say_the_same_of_one_message(flatout: str, tmp_path: Path) -> None:
    for idle, finding in (("1.90 GiB", "gpu.oom_fragmented"), ("0.05 GiB", "gpu.oom_too_big")):
        (tmp_path / "oom.log").write_text(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which "
            "1.20 GiB is free. Including non-PyTorch memory, this process has 22.49 GiB memory in use. Of the allocated memory "
            f"20.10 GiB is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated.\n")
        for command in (["explain"], ["devmem", "explain"]):
            answer = json.loads(run(flatout, *command, "--json", str(tmp_path / "oom.log")).stdout)
            assert answer["finding"] == finding, (command, answer)


def test_a_log_that_is_not_there_is_an_error(flatout: str, tmp_path: Path) -> None:
    assert "none.log" in run(flatout, "explain", tmp_path / "none.log", code=1).stderr


def test_real_frameworks_messages(flatout: str, job_python: str, tmp_path: Path) -> None:
    """What the installed PyTorch really prints, not what we remember of it."""
    torch = pytest.importorskip("torch", reason="lacks PyTorch")
    jobs = {
        "label_out_of_range": "F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 7]))",
        "index_out_of_range": "F.embedding(torch.tensor([9]), torch.zeros(3, 2))",
        "shape_mismatch": "torch.zeros(2, 3) @ torch.zeros(4, 5)",
        "host_out_of_memory": "torch.empty(1 << 60)",
        "cpu_only_build": "torch.zeros(2).cuda()",
        "autograd_misuse": "torch.zeros(2).sum().backward()",
        "probabilities_not_finite": "torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)",
        "not_picklable": "import pickle; pickle.dumps(lambda: 0)",
        "samples_differ_in_size": "torch.utils.data.default_collate([torch.zeros(2), torch.zeros(3)])",
        "unknown": "raise ZeroDivisionError('seven')",
    }
    if "+cpu" not in torch.__version__:
        del jobs["cpu_only_build"]
    script = tmp_path / "job.py"
    script.write_text(
        "import json, sys, traceback\nimport torch\nimport torch.nn.functional as F\n"
        "for kind, code in json.load(sys.stdin).items():\n"
        "    try:\n"
        "        exec(compile(code, 'train.py', 'exec'))\n"
        "    except BaseException:\n"
        "        open(kind + '.log', 'w').write('step 1\\n' + traceback.format_exc())\n"
    )
    subprocess.run([job_python, str(script)], input=json.dumps(jobs), text=True, cwd=tmp_path, timeout=120, check=True)
    for kind in jobs:
        log = (tmp_path / f"{kind}.log").read_text()
        assert json.loads(run(flatout, "explain", "--json", text=log).stdout)["kind"] == kind, log


def test_a_worker_that_is_really_killed(flatout: str, job_python: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="lacks PyTorch")
    script = tmp_path / "job.py"
    script.write_text(
        "import os, signal, torch\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    for b in torch.utils.data.DataLoader(D(), num_workers=1): pass\n"
    )
    log = subprocess.run([job_python, str(script)], capture_output=True, text=True, timeout=120)
    answer = json.loads(run(flatout, "explain", "--json", text=log.stderr).stdout)
    assert (answer["kind"], answer["finding"]) == ("worker_killed", "mem.killed"), log.stderr


def test_check_gives_problems_and_a_code(flatout: str, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(1000))
    done = subprocess.run([flatout, "check", "--json", str(tmp_path)], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 3)
    assert found["ok"] == (not any(p["fails"] for p in found["problems"]))
    assert all(p["id"] and p["text"] and p["hint"] for p in found["problems"])
    type_ = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", str(tmp_path)], capture_output=True, text=True).stdout.strip()
    place = found["machine"][f"data {tmp_path.resolve()}"]
    assert place.removesuffix(", layers of a container") == f"2.93 KiB in 3 files on {type_}"
    assert "not there" in run(flatout, "check", tmp_path / "not there", code=1).stderr


def test_check_says_in_words_what_will_end_a_job(flatout: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (3600, 7200))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run([flatout, "check", "--no-contexts"], capture_output=True, text=True, preexec_fn=limit,
                          env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 3, done.stderr
    assert re.search(r"^  limit\.cpu_time  will stop a job$", done.stdout, re.M), done.stdout
    assert re.search(r"^  limit\.file_size  will stop a job$", done.stdout, re.M), done.stdout
    stops, all_ = map(int, re.search(r"(\d+) of (\d+) will stop a job: exit code 3\.", done.stdout).groups())
    assert stops == len(re.findall(r"will stop a job$", done.stdout, re.M))
    assert all_ == len(re.findall(r"^  [a-z]+\.[a-z_]+(  will stop a job)?$", done.stdout, re.M))


def test_check_self_says_what_can_be_measured(flatout: str) -> None:
    found = json.loads(run(flatout, "check", "--self", "--json").stdout)
    missing = {p["id"] for p in found["problems"]}
    answers = {"pressure": "pressure", "run_queue_delay": "schedstat", "block_io_delay": "delay_accounting", "sessions": "autogroup",
               "stacks_of_attached_jobs": "ptrace", "python_stacks": "python", "native_functions": "perf", "blocked_calls": "syscall", "gpus": "gpu",
               "control_groups": "cgroup", "other_users_processes": "other_users", "other_users_io": "other_users_io"}
    for fact, gap in answers.items():
        assert found["machine"][fact] == ("no" if f"self.{gap}" in missing else "yes"), fact
    # What the kernel's own files say.
    assert found["machine"]["pressure"] == ("yes" if Path("/proc/pressure/cpu").exists() else "no")
    python = re.search(r"3\.(\d+)", subprocess.run(["python3", "--version"], capture_output=True, text=True).stdout)
    if python:
        assert found["machine"]["python"] == python[0]
    text = run(flatout, "check", "--self").stdout
    gaps = len(found["problems"])
    assert (f"{gaps} of the things that Flatout measures cannot" if gaps else "All that Flatout measures can") in text, text


def fincore(path: Path) -> int:
    out = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)], capture_output=True, text=True)
    return int(out.stdout)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.bin").write_bytes(os.urandom(3_000_000 + i))
    subprocess.run(["sync", "-f", str(folder)], check=True)
    return folder


def test_cache_says_what_fincore_says(flatout: str, data: Path) -> None:
    if not shutil.which("fincore"):
        pytest.skip("lacks fincore of util-linux")
    run(flatout, "cache", "drop", "--sync", data)
    with open(data / "2.bin", "rb") as file:
        file.read(1_000_000)
    set_ = json.loads(run(flatout, "cache", "status", "--json", data).stdout)
    assert len(set_["files"]) == 6
    page = os.sysconf("SC_PAGESIZE")
    for file in set_["files"]:
        # fincore counts whole pages, we count no byte beyond the file's end.
        assert abs(fincore(Path(file["path"])) - file["cached_bytes"]) < page, file
    assert sum(f["cached_bytes"] for f in set_["files"]) == set_["cached_bytes"]


def test_cache_warms_and_drops_without_a_change(flatout: str, data: Path) -> None:
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(data.iterdir())}
    dropped = json.loads(run(flatout, "cache", "drop", "--sync", "--json", data).stdout)
    if dropped["after_bytes"]:
        pytest.skip("lacks a file system that lets pages go")
    total = sum(size for _, _, size in before.values())
    warmed = json.loads(run(flatout, "cache", "warm", "--json", data).stdout)
    cached = json.loads(run(flatout, "cache", "status", "--json", data).stdout)["cached_bytes"]
    for path, (content, mtime, _) in before.items():
        assert path.read_bytes() == content and path.stat().st_mtime_ns == mtime
    if warmed["stopped"]:
        pytest.skip("lacks free memory")
    assert warmed["read_bytes"] == cached == total


def test_cache_warms_no_faster_than_it_is_told(flatout: str, data: Path) -> None:
    if json.loads(run(flatout, "cache", "drop", "--sync", "--json", data).stdout)["after_bytes"]:
        pytest.skip("lacks a file system that lets pages go")
    began = time.monotonic()
    warmed = json.loads(run(flatout, "cache", "warm", "--json", "--mb-per-s", 9, data).stdout)
    took = time.monotonic() - began
    if warmed["stopped"]:
        pytest.skip("lacks free memory")
    assert warmed["read_bytes"] / took <= 9.5e6  # a busy machine makes it slower, nothing faster


def opened_in(folder: Path, command: list[str]) -> list[str]:
    """The names of the files in a folder that were opened while a command ran, by inotify, each once, in order."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    watched = {}
    for place in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        watched[libc.inotify_add_watch(fd, bytes(place), 0x20)] = place  # IN_OPEN
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names: dict[str, None] = {}
    while select.select([fd], [], [], 0)[0]:
        data = os.read(fd, 1 << 20)
        at = 0
        while at < len(data):
            watch, length = (int.from_bytes(data[at + i : at + i + 4], sys.byteorder) for i in (0, 12))
            name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            if name and (watched[watch] / name).is_file():
                names[str((watched[watch] / name).relative_to(folder))] = None
            at += 16 + length
    os.close(fd)
    return list(names)


def test_cache_warms_as_the_loader_will_read(flatout: str, tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="lacks Pillow")
    pytest.importorskip("numpy", reason="lacks NumPy")
    library = Path(flatout).resolve().parent / "libflatout_feed.so"
    if not library.exists():
        pytest.skip("lacks libflatout_feed.so: make build")
    folder = tmp_path / "pictures"
    for i in range(12):  # a class for each, so that a label says which file it was
        (folder / f"class{i:02}").mkdir(parents=True)
        Image.new("RGB", (32, 32), (20 * i, 0, 0)).save(folder / f"class{i:02}" / "one.png")
    script = "import sys\nfrom flatout import feed\nwith feed.Loader(sys.argv[1], 1, 16, seed=7, form='numpy') as loader:\n    print([int(y[0]) for x, y in loader])\n"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "python"), "FLATOUT_FEED_LIBRARY": str(library)}
    read = json.loads(subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True, env=env).stdout)
    assert sorted(read) == list(range(12)) != read
    warm = [flatout, "cache", "warm", "--json", str(folder)]
    assert opened_in(folder, [*warm, "--order", "feed:7"]) == [f"class{i:02}/one.png" for i in read]
    assert opened_in(folder, warm) == [f"class{i:02}/one.png" for i in range(12)]
    assert "feed:SEED" in run(flatout, "cache", "warm", "--order", "feed:x", folder, code=2).stderr


def test_cache_status_draws_a_map(flatout: str, data: Path) -> None:
    def status() -> str:
        return run(flatout, "cache", "status", data, env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1"}).stdout

    if json.loads(run(flatout, "cache", "drop", "--sync", "--json", data).stdout)["after_bytes"]:
        pytest.skip("lacks a file system that lets pages go")
    cold = status()
    assert cold.startswith("0 B of 17.2 MiB cached (0 %), 6 files\n"), cold
    assert re.search(r"^  \.{20,}$", cold, re.M), cold
    for file in data.iterdir():
        file.read_bytes()
    warm = status()
    assert warm.startswith("17.2 MiB of 17.2 MiB cached (100 %), 6 files\n"), warm
    assert re.search(r"^  #{20,}$", warm, re.M) and not re.search(r"^  [.=+-]", warm, re.M), warm
    # Few files are named, many by their folder.
    assert len(re.findall(r"^ +100 % +2\.86 MiB  \S*/\d\.bin$", warm, re.M)) == 6, warm
    for i in range(20):
        (data / f"{i}.txt").write_text("x")
    assert re.search(r"^ +100 % +17\.2 MiB +26 files  \S*data$", status(), re.M), status()
    assert "PATH" in run(flatout, "cache", "drop", code=2).stderr
    assert "status" in run(flatout, "cache", "stats", data, code=2).stderr


def test_cache_does_not_call_cached_what_it_may_not_look_at(flatout: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("lacks root: the test takes its rights away itself")
    if not Path("/etc/shadow").exists():
        pytest.skip("lacks a file that nobody but root may read")

    def as_nobody(*words):
        return subprocess.run([flatout, *words], user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True)

    try:
        if as_nobody("--version").returncode != 0:
            raise PermissionError
    except PermissionError:
        pytest.skip("lacks a flatout that other users may start")
    for what in ("status", "warm", "drop"):
        done = as_nobody("cache", what, "/etc/shadow")
        assert (done.returncode, done.stdout) == (1, ""), what
        assert "1 file or folder could not be looked at" in done.stderr and "owner" in done.stderr


def test_cache_names_the_folders_and_files_of_others(flatout: str, data: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("lacks root: the test takes its rights away itself")
    (data / "private").mkdir(mode=0o700)
    (data / "private" / "big").write_bytes(bytes(1_000_000))
    os.chmod(data, 0o755)
    os.chown(data / "0.bin", 65534, 65534)
    # By relative names: pytest's folder is its owner's alone.
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": data, "capture_output": True, "text": True}
    try:
        if subprocess.run([flatout, "--version"], **nobody).returncode != 0:
            raise PermissionError
    except PermissionError:
        pytest.skip("lacks a flatout that other users may start")
    done = subprocess.run([flatout, "cache", "status", "--json", "."], **nobody)
    assert done.returncode == 0 and "could not be looked at" in done.stderr
    set_ = json.loads(done.stdout)
    assert [f["path"] for f in set_["files"]] == ["./0.bin"]
    assert set_["skipped"][0] == {"path": "./private", "reason": "cannot open the folder ./private: Permission denied"}
    alone = subprocess.run([flatout, "cache", "status", "private"], **nobody)
    assert (alone.returncode, alone.stdout) == (1, "") and "Permission denied" in alone.stderr
    # The pages of others' files go, too, and nobody may count them.
    dropped = subprocess.run([flatout, "cache", "drop", "1.bin"], **nobody)
    assert dropped.returncode == 0 and "not counted: 1 file " in dropped.stdout, dropped


def test_cache_reads_the_rest_of_a_list_with_gaps(flatout: str, data: Path) -> None:
    names = f"{data}/none\r\n{data}/0.bin\r\n\r\n{data}/1.bin\r\n"
    done = run(flatout, "cache", "warm", "--json", "--list", "-", text=names, code=1)
    assert "1 file or folder could not be looked at" in done.stderr
    warmed = json.loads(done.stdout)
    assert warmed["bytes"] == 6_000_001
    assert [s["path"] for s in warmed["skipped"]] == [f"{data}/none"]


def in_terminal(command: str, env: dict) -> str:
    script = shutil.which("script")
    if not script:
        pytest.skip("lacks script of util-linux")
    return subprocess.run([script, "-qec", command, "/dev/null"], capture_output=True, text=True, env=env, timeout=120).stdout


def test_cache_warm_shows_its_progress_on_a_terminal_only(flatout: str, data: Path) -> None:
    assert re.search(r"100 % of 17\.2 MiB", in_terminal(f"{flatout} cache warm {data}", {**os.environ}))
    assert "%" not in in_terminal(f"{flatout} cache warm --quiet {data}", {**os.environ})
    assert not run(flatout, "cache", "warm", data).stderr


def test_only_root_drops_the_whole_machines_cache(flatout: str) -> None:
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        done = subprocess.run([flatout, "cache", "drop", "--all"], capture_output=True, text=True, cwd="/", **nobody)
    except PermissionError:
        pytest.skip("lacks a build that another user may run")
    assert done.returncode == 1
    assert "only root may: sudo flatout cache drop --all" in done.stderr
    assert "takes no PATH" in run(flatout, "cache", "drop", "--all", "/tmp", code=2).stderr


def test_dropping_the_whole_machines_cache_says_what_that_costs(flatout: str, tmp_path: Path) -> None:
    switch = tmp_path / "drop_caches"  # in place of the kernel's, so that nothing is dropped
    switch.write_text("")
    mounted = f"mount --bind {switch} /proc/sys/vm/drop_caches"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True).returncode != 0:
        pytest.skip("lacks root, or mount namespaces")
    done = subprocess.run(["unshare", "-m", "sh", "-c", f"{mounted} && exec {flatout} cache drop --all --json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert switch.read_text() == "1\n"
    answer = json.loads(done.stdout)
    assert answer["all"] is True and answer["after_bytes"] > 0
    told = re.search(r"page cache, ([\d.]+) ([KMGT])iB: every program", done.stderr)
    assert told, done.stderr
    assert float(told[1]) * 1024 ** ("KMGT".index(told[2]) + 1) == pytest.approx(answer["before_bytes"], rel=0.01)


def test_pages_are_clean_roff(flatout: str, tmp_path: Path) -> None:
    if not shutil.which("groff"):
        pytest.skip("lacks groff")
    run(flatout, "manual", tmp_path)
    for page in tmp_path.glob("*.1"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, (page, done.stderr)
        assert "NAME" in re.sub(".\b", "", done.stdout)  # bold is struck over


def test_no_color_is_heeded(flatout: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(OOM)
    shown = {}
    for name, extra in {"color": {}, "plain": {"NO_COLOR": "1"}}.items():
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", **extra}
        shown[name] = in_terminal(f"{flatout} explain {log}", env)
    assert "\x1b[" in shown["color"] and "\x1b[" not in shown["plain"]


def test_the_colour_blind_tell_good_from_bad(flatout: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(OOM)
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"}
    shown = in_terminal(f"sh -c 'ulimit -t 3600; {flatout} check --no-contexts; {flatout} explain {log}'", env)
    used = {int(n) for n in re.findall(r"\x1b\[(?:1;)?38;5;(\d+)m", shown)}
    assert len(used) >= 4, "bad, warning, good, accent"
    assert not re.search(r"\x1b\[(?:1;)?3[0-7]m", shown), "the colours that each terminal chooses itself"
    assert_told_apart(used)


def found_within(flatout: str, setup: str, cwd: Path) -> dict[str, dict]:
    """The problems by id, in a mount namespace that was set up first."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("lacks root, or mount namespaces")
    done = subprocess.run(["unshare", "-m", "sh", "-c", f"{setup} && exec {flatout} check --json --no-contexts"], capture_output=True, text=True, cwd=cwd)
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    return {p["id"]: p for p in found["problems"]}


def test_check_sees_where_the_job_may_not_write(flatout: str, tmp_path: Path) -> None:
    here = found_within(flatout, "true", tmp_path)
    assert not {"disk.not_writable", "check.proc"} & here.keys()
    (tmp_path / "away").mkdir()
    read_only = found_within(flatout, f"mount -t tmpfs -o ro none {tmp_path}/away && cd {tmp_path}/away", tmp_path)
    assert "read-only" in read_only["disk.not_writable"]["text"] and not read_only["disk.not_writable"]["fails"]
    gone = found_within(flatout, f"cd {tmp_path}/away && rmdir {tmp_path}/away", tmp_path)
    assert "has been removed" in gone["disk.not_writable"]["text"] and gone["disk.not_writable"]["fails"]


def test_check_says_where_shared_memory_or_proc_is_missing(flatout: str, tmp_path: Path) -> None:
    # A /dev without its shm: as a container that was set up by hand has it.
    none = found_within(flatout, f"mkdir {tmp_path}/dev && touch {tmp_path}/dev/null && mount --bind /dev/null {tmp_path}/dev/null && mount --rbind {tmp_path}/dev /dev", tmp_path)
    assert none["mem.shm"]["text"].startswith("There is no /dev/shm") and none["mem.shm"]["fails"]
    empty = found_within(flatout, "mount -t tmpfs none /proc", tmp_path)
    assert empty["check.proc"]["fails"]


@pytest.mark.parametrize("context", [0, 2, 999])
def test_check_tries_a_cuda_context_on_each_gpu(flatout: str, tmp_path: Path, context: int) -> None:
    stand_ins = [Path(flatout).resolve().parent / name for name in ("nvml_stand_in", "cuda_stand_in")]
    if not all(s.is_dir() for s in stand_ins):
        pytest.skip("lacks the stand-ins of NVML and libcuda: make build")
    ids = ["00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"]
    gpu = [f"GPU-{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}" for i in ids]
    (tmp_path / "nvml").write_text("devices 2\ndriver 570.10\ncuda 12080\n" + "".join(
        f"{i} name Test\n{i} uuid {gpu[i]}\n{i} mem_total 1000000000\n{i} mem_used 0\n" for i in (0, 1)))
    # CUDA shows them in another order than NVML: the second of its devices is GPU 0.
    (tmp_path / "cuda").write_text(f"devices 2\n0 uuid {ids[1]}\n1 uuid {ids[0]}\n1 context {context}\n1 free {700 << 20}\n1 total {1 << 30}\n")
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, stand_ins)), "NVML_STAND_IN": str(tmp_path / "nvml"),
           "CUDA_STAND_IN": str(tmp_path / "cuda")}

    def contexts(*words: str) -> tuple[list[str], str]:
        done = subprocess.run([flatout, "check", "--json", *words], capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode in (0, 3), done.stderr
        found = json.loads(done.stdout)
        return [p["text"] for p in found["problems"] if p["id"] == "gpu.context"], found["machine"]["gpu0"]

    error = {0: None, 2: "CUDA_ERROR_OUT_OF_MEMORY", 999: "CUDA_ERROR_UNKNOWN"}[context]
    free = "Test of 954 MiB, 954 MiB are free"
    assert contexts() == (([f"On GPU 0 no CUDA context can be created: {error}."], free) if error else
                          ([], f"{free}, 700 MiB within a CUDA context"))
    assert contexts("--no-contexts") == ([], free)


def test_cache_warms_in_the_order_of_a_list(flatout: str, data: Path, tmp_path: Path) -> None:
    files = sorted((p for p in data.rglob("*") if p.is_file()), reverse=True)[:3]
    run(flatout, "cache", "drop", "--sync", data)
    (tmp_path / "list").write_text("\n".join(map(str, files)) + "\n")
    warm = [flatout, "cache", "warm", "--json", "--list", str(tmp_path / "list")]
    assert opened_in(data, warm) == [p.name for p in files]
    warmed = json.loads(run(*warm).stdout)
    assert warmed["bytes"] == sum(p.stat().st_size for p in files)
    by_pipe = json.loads(run(flatout, "cache", "warm", "--json", "--list", "-", text=str(files[0]) + "\n").stdout)
    assert by_pipe["bytes"] == files[0].stat().st_size
    assert "PATH" in run(flatout, "cache", "warm", code=2).stderr
    assert "PATH" in run(flatout, "cache", "warm", "--list", tmp_path / "list", data, code=2).stderr
    run(flatout, "cache", "warm", "--list", tmp_path / "none", code=1)

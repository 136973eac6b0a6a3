"""flatout devmem limit, on a stand-in for libcuda that the build makes: what a job sees, what its processes share, and the exit codes."""

import ctypes
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel

MIB = 1 << 20


@pytest.fixture
def limit(flatout, tmp_path):
    """Starts `flatout devmem limit WORDS` with the stand-in driver in place; gives the process."""
    built = Path(flatout).resolve().parent / "src" / "devlimit"
    if not (built / "devlimit_job").exists() or not (built / "fake" / "libcuda.so.1").exists():
        pytest.skip("lacks devlimit_job and the stand-in libcuda beside the program: build all targets")
    env = {**os.environ, "LD_LIBRARY_PATH": str(built / "fake"), "FAKE_CARD": str(tmp_path / "card"), "JOB": str(built / "devlimit_job")}

    def start(*words, **more) -> subprocess.Popen:
        return subprocess.Popen([flatout, "devmem", "limit", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    return start


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("size, total", [("512MiB", 512 * MIB), ("25%", 4096 * MIB), ("0.5", 8192 * MIB), ("0=1GiB,1=2GiB", 1024 * MIB)])
def test_the_limit_is_what_cuda_and_nvml_show(limit, size, total):
    code, out, err = finish(limit(size, "--", "sh", "-c", "exec $JOB info"))
    assert code == 0, err
    shown, free, nvml_total, nvml_used = map(int, out.split())
    assert shown == nvml_total == total
    assert total - free == nvml_used > 0


def test_the_processes_of_a_job_share_it_and_give_back_when_they_are_killed(limit):
    script = """
$JOB hold 600000000 > "$FAKE_CARD.first" & first=$!
while ! [ -s "$FAKE_CARD.first" ]; do sleep 0.05; done
$JOB hold 600000000            # the second does not fit
kill -9 $first; wait $first
$JOB hold 600000000 > "$FAKE_CARD.third" & third=$!
while ! [ -s "$FAKE_CARD.third" ]; do sleep 0.05; done
cat "$FAKE_CARD.third"; kill -9 $third
"""
    code, out, err = finish(limit("1GiB", "--", "sh", "-c", script))
    assert out.split() == ["refused", "held"], err
    assert "passes the limit of 1073741824 on device 0" in err


def test_what_is_shared_is_private_and_gone_at_the_end(limit):
    code, out, _ = finish(limit("1GiB", "--", "sh", "-c", 'stat -c "%a %n" $FLATOUT_DEVLIMIT_SHARED'))
    mode, path = out.split()
    assert code == 0 and mode == "600" and not Path(path).exists()


def test_what_a_killed_command_left_goes_with_the_next_once_its_job_has_ended(limit):
    killed = limit("1GiB", "--", "sh", "-c", "echo $FLATOUT_DEVLIMIT_SHARED $$; exec $JOB hold 600000000", start_new_session=True)
    path, job = killed.stdout.readline().split()
    assert killed.stdout.readline() == "held\n"
    try:
        killed.kill()
        killed.wait(timeout=60)
        finish(limit("1GiB", "--", "true"))
        assert Path(path).exists()  # the job goes on counting in it
    finally:
        os.kill(int(job), signal.SIGKILL)
    killed.stdout.read()  # up to the job's end
    finish(limit("1GiB", "--", "true"))
    assert not Path(path).exists()


def test_the_exit_code_is_the_jobs_own_and_signals_reach_it(limit):
    assert finish(limit("1GiB", "--", "sh", "-c", "exit 7"))[0] == 7
    assert finish(limit("1GiB", "--", "sh", "-c", "kill -9 $$"))[0] == 137
    assert finish(limit("1GiB", "--", "/no/such/program"))[0] == 127
    asked = limit("1GiB", "--", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done", start_new_session=True)
    assert asked.stdout.readline() == "ready\n"
    asked.send_signal(signal.SIGTERM)
    assert finish(asked)[0] == 9


@pytest.mark.parametrize("size, says", [("lots", "neither a size"), ("3", "less than a card"), ("1.5", "no part"), ("1GiB,2GiB", "twice"), ("0=1GiB,0=2GiB", "named before"), ("8gibx", "'8gibx'")])
def test_a_bad_limit_is_named(limit, size, says):
    code, _, err = finish(limit(size, "--", "true"))
    assert code == 2 and says in err


def test_options_stand_before_the_size(limit):
    code, _, err = finish(limit("1GiB", "--record", "memory.jsonl", "--", "true"))
    assert code == 2 and "--record stands behind the size" in err


def test_a_recording_is_what_replay_reads(limit, flatout, tmp_path):
    """Two processes of four threads that take and give back memory in every way: each file's ends have their beginnings."""
    record = tmp_path / "memory.jsonl"
    code, _, err = finish(limit("--record", str(record), "2GiB", "--", "sh", "-c", "$JOB stress 300 4 2 & $JOB stress 300 4 2; wait"))
    files = sorted(tmp_path.glob("memory.jsonl*"))
    assert code == 0 and len(files) == 2, err
    for file in files:
        told = subprocess.run([flatout, "devmem", "replay", "--json", str(file)], capture_output=True, text=True, timeout=120)
        assert told.returncode == 0 and "fit nowhere" not in told.stderr, told.stderr
        bound = next(r for r in json.loads(told.stdout) if r["policy"] == "bound")
        assert bound["requests"] > 100 and 0 < bound["peak_live_bytes"] <= 2 << 30
        assert bound["trace"].startswith("process ")
    code, _, err = finish(limit("--record", str(record), "2GiB", "--", "true"))
    assert code == 2 and "is there already" in err


def test_what_a_preload_cannot_hold_is_refused(limit, tmp_path):
    source = tmp_path / "s.c"
    source.write_text("int main(void) { return 0; }\n")
    if subprocess.run(["cc", "-static", "-o", tmp_path / "s", source], capture_output=True).returncode != 0:
        pytest.skip("no compiler, or no static C library")
    code, _, err = finish(limit("1GiB", "--", str(tmp_path / "s")))
    assert code == 125 and "linked statically" in err


def test_a_limit_within_a_limit_is_refused(limit, flatout):
    code, _, err = finish(limit("1GiB", "--", flatout, "devmem", "limit", "2GiB", "--", "true"))
    assert code == 2 and "already" in err


def test_a_job_without_cuda_runs_as_ever(limit, job_python):
    words = "import ctypes, ctypes.util, sqlite3, ssl; print(ctypes.CDLL(None).getpid() > 0)"
    code, out, err = finish(limit("1GiB", "--", job_python, "-c", words))
    assert (code, out, err) == (0, "True\n", "")


class Watched:
    """The most memory of device 0 that NVML saw all processes hold together."""

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        assert self.nvml.nvmlInit_v2() == 0
        assert self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0
        self.most, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def held(self):
        count, processes = ctypes.c_uint(64), (self.Process * 64)()
        assert self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), processes) == 0
        return sum(p.used for p in processes[:count.value])

    def watch(self):
        while not self.ended.wait(0.001):
            self.most = max(self.most, self.held())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


@pytest.mark.gpu
@pytest.mark.parametrize("allocator", ["backend:native", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_a_limit_holds_on_a_card(flatout, job_python, tmp_path, allocator):
    """Two processes that take what they get, in every size: NVML never sees more than the limit, and PyTorch goes on after each refusal."""
    file = tmp_path / "job.py"
    file.write_text("""
import os, random, torch
if os.fork() == 0:
    random.seed(1)
total = torch.cuda.mem_get_info()[1]
held, refused, taken = [], 0, 0
for turn in range(400):
    try:
        held.append(torch.empty(random.choice((1 << 10, 3 << 20, 30 << 20, 200 << 20)), dtype=torch.uint8, device="cuda").fill_(7))
        a = torch.randn(512, 512, device="cuda")
        taken += int((a @ a).isfinite().all())
        torch.nn.functional.conv2d(torch.randn(4, 16, 64, 64, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda"))
    except torch.OutOfMemoryError:
        refused += 1
        random.shuffle(held)
        del held[len(held) // 2:]
    if turn % 100 == 99:
        held.clear()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
print(total, refused, taken, flush=True)
""")
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": allocator, "PYTORCH_ALLOC_CONF": allocator}
    check = subprocess.run([job_python, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True, env=env)
    if check.stdout.strip() != "True":
        pytest.skip("lacks a card")
    with Watched() as watched:
        done = subprocess.run([flatout, "devmem", "limit", "3GiB", "--", job_python, str(file)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    jobs = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    print(allocator, jobs, watched.most / MIB, done.stderr)
    assert len(jobs) == 2 and all(total == 3 << 30 and refused > 0 and taken > 100 for total, refused, taken in jobs), done.stdout + done.stderr
    assert watched.most > 1 << 30, "NVML does not know the processes by their numbers"
    assert watched.most <= 3 << 30

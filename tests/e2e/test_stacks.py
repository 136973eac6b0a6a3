"""Python stacks read from outside, against py-spy and against what the script is known to do.

Every CPython that can be found (on PATH, and beside a pyenv) is tried; versions that are not there are skipped by name.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import interpreters
import pytest

pytestmark = pytest.mark.parallel

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t"]

SCRIPT = r"""
import gc, os, subprocess, sys, threading, time

def spin(n):
    total = 0
    for i in range(n):
        total += i % 7
    return total

def numbers():
    while True:
        spin(300)
        yield 1

def recurse(depth):
    if depth:
        return recurse(depth - 1)
    for _ in numbers():
        pass

class Ünïcode:
    def größe(self):
        event.wait()

def sleeper():
    while True:
        time.sleep(
            1000
        )

def reader():
    os.read(pipe, 1)

def child():
    subprocess.call(["sleep", "1000"])

pipe, other = os.pipe()
event = threading.Event()
for target in (Ünïcode().größe, sleeper, reader, child, lambda: recurse(300)):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.4)
print("ready", flush=True)
exec(compile("def made():\n    recurse(3)\nmade()\n", "<made>", "exec"))
"""


PYTHONS = interpreters.found(VERSIONS)


def stack_dump():
    program = os.environ.get("FLATOUT_BIN")
    folders = [pathlib.Path(program).parent] if program else sorted((ROOT / "build").glob("*"))
    for folder in folders:
        path = folder / "src" / "probe" / "stack_dump"
        if path.exists():
            return str(path)
    pytest.skip("stack_dump is not built")


def py_spy():
    path = shutil.which("py-spy") or str(pathlib.Path(sys.executable).parent / "py-spy")
    if not os.path.exists(path):
        pytest.skip("py-spy is not installed")
    return path


def dump(pid, *options):
    out = subprocess.run([stack_dump(), str(pid), *options], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


class Target:
    def __init__(self, python, script, *arguments):
        self.process = subprocess.Popen(
            [python, "-c", script, *arguments], stdout=subprocess.PIPE, start_new_session=True
        )
        self.pid = self.process.pid

    def __enter__(self):
        assert self.process.stdout.readline().strip() == b"ready"
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()


def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    while True:
        states = [
            pathlib.Path(f"/proc/{pid}/task/{t}/stat").read_bytes().rsplit(b")", 1)[1].split()[0]
            for t in os.listdir(f"/proc/{pid}/task")
        ]
        if all(s == b"T" for s in states):
            return
        time.sleep(0.001)


@pytest.fixture(params=VERSIONS)
def python(request):
    if request.param not in PYTHONS:
        pytest.skip(f"CPython {request.param} is not installed")
    return PYTHONS[request.param]


LOOPS = r"""
import os, signal, sys

def names():
    yield from "abc"

def step(number):
    for layer in (1, 2, 3, 4):
        if layer == 3 and number == 250:
            print("ready", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

def train():
    for epoch in [7, 8, 9]:
        with open("/dev/null") as file:
            for start in range(0, 1000, 10):
                pass
            for number, start in enumerate(range(100, 6100, 20)):
                for name in names():
                    if epoch == 8:
                        step(number)

train()
"""


def free_threaded(python):
    return subprocess.run([python, "-c", "import sys; sys.exit(sys._is_gil_enabled())"], capture_output=True).returncode == 0


def test_loops_are_as_far_as_the_process_stopped(python):
    with Target(python, LOOPS) as target:
        stopped(target.pid)
        loops = dump(target.pid)["threads"][0]["loops"]
    # What lies beneath enumerate() and left-overs of loops that have ended may be there, too.
    told = [(loop["function"], loop["begun"], loop["length"]) for loop in loops]
    wanted = [("train", 2, 3), ("train", 251, -1), ("step", 3, 4)]
    assert [loop for loop in told if loop in wanted] == wanted, told
    assert len(told) <= len(wanted) + 1


def stacks_by_py_spy(pid):
    out = subprocess.run(
        [py_spy(), "dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout
    return json.loads(out)


def test_stacks_of_a_stopped_process_agree_with_py_spy(python):
    if free_threaded(python):
        pytest.skip("py-spy does not read free-threaded builds")
    same = total = 0
    with Target(python, SCRIPT) as target:
        for _ in range(20):
            stopped(target.pid)
            theirs = stacks_by_py_spy(target.pid)
            ours = {t["tid"]: t for t in dump(target.pid)["threads"]}
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.01)
            assert len(ours) == len(theirs) == 6
            assert not any(t["torn"] for t in ours.values())
            by_id = {t["thread_id"]: t for t in ours.values()}
            for thread in theirs:
                mine = ours.get(thread["os_thread_id"]) or by_id[thread["thread_id"]]
                # py-spy names methods with their class where the version tells it.
                frames = [(f["name"].split(".")[-1], f["filename"], f["line"]) for f in thread["frames"]]
                own = [(f["name"], f["file"], f["line"]) for f in mine["frames"]]
                total += max(len(frames), len(own))
                same += sum(a == b for a, b in zip(frames, own))
                # Stopped amid the hand-over the lock is taken already and no thread is current yet.
                handed = not any(t["owns_gil"] for t in theirs)
                assert mine["gil"] == thread["owns_gil"] or handed
    assert total > 20 * 300
    assert same >= 0.99 * total


UNWIND = r"""
import _remote_debugging, json, sys

def threads(trace):
    for entry in trace:  # from 3.15 on of each interpreter
        yield from threads(entry.threads) if hasattr(entry, "threads") else [entry]

def line(frame):
    place = frame[1]
    return place[0] if isinstance(place, tuple) else place

unwinder = _remote_debugging.RemoteUnwinder(int(sys.argv[1]), all_threads=True)
print(json.dumps({
    thread.thread_id: [(frame.funcname.split(".")[-1], frame.filename, line(frame)) for frame in thread.frame_info]
    for thread in threads(unwinder.get_stack_trace())
}))
"""


def test_stacks_of_a_stopped_free_threaded_process_agree_with_its_own_unwinder(python):
    if not free_threaded(python):
        pytest.skip("py-spy is asked for these")
    if subprocess.run([python, "-c", "import _remote_debugging"], capture_output=True).returncode != 0:
        pytest.skip("this Python has no unwinder")
    same = total = 0
    with Target(python, SCRIPT) as target:
        for _ in range(20):
            stopped(target.pid)
            out = subprocess.run([python, "-c", UNWIND, str(target.pid)], capture_output=True, text=True, timeout=60)
            ours = {t["tid"]: t for t in dump(target.pid)["threads"]}
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.01)
            if out.returncode != 0:  # a frame that is being entered or left: it gives up
                continue
            theirs = json.loads(out.stdout)
            assert {int(tid) for tid in theirs} == set(ours)
            assert not any(t["torn"] for t in ours.values())
            for tid, frames in theirs.items():
                own = [(f["name"], f["file"], f["line"]) for f in ours[int(tid)]["frames"]]
                # Where C called Python it may end; ours goes on.
                total += len(frames)
                same += sum(tuple(a) == b for a, b in zip(frames, own))
    assert total > 5 * 300
    assert same >= 0.99 * total


def test_each_thread_is_found_in_its_function_and_its_state(python):
    with Target(python, SCRIPT) as target:
        result = dump(target.pid, "--states", "1.0", "--interval-us", "10000")
    threads = result["threads"]

    def time_of(function, state):
        for t in threads.values():
            if t["pid"] == target.pid and any(function in s for s in t["stacks"]):
                return t["states"].get(state, 0.0) / sum(t["states"].values())
        raise AssertionError(f"no thread was seen in {function}")

    assert not result["missing"]
    assert time_of("sleeper", "sleep") > 0.95
    assert time_of("größe", "lock") > 0.95
    assert time_of("reader", "poll") > 0.95
    assert time_of("child", "child") > 0.95
    # Two threads spin: one holds the lock of the interpreter, the other waits for it. (Little is asked for here:
    # on a busy machine both also wait for a core.)
    spinning = [t for t in threads.values() if t["pid"] == target.pid and any("recurse" in s for s in t["stacks"])]
    assert len(spinning) == 2
    queued = sum(t["states"].get("run_queue", 0) for t in spinning)
    if free_threaded(python):
        assert not any(t["states"].get("gil_wait", 0) or t.get("gil", 0) for t in spinning)
        assert sum(t["states"].get("python", 0) for t in spinning) + queued > 1.5
        return
    assert sum(t["states"].get("gil_wait", 0) for t in spinning) > 0.03 or queued > 1.0
    assert sum(t.get("gil", 0) for t in spinning) > 0.6


def test_a_running_collector_is_seen(python):
    script = "import gc\nkeep = [[] for _ in range(2000000)]\nprint('ready', flush=True)\nwhile True: gc.collect()\n"
    with Target(python, script) as target:
        result = dump(target.pid, "--states", "1.0", "--interval-us", "10000")
    main = result["threads"][str(target.pid)]
    assert main["gc"] > 0.8


def test_a_target_that_ends_at_any_moment_is_an_error_and_no_more(python):
    tool = stack_dump()
    for delay in (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.08):
        process = subprocess.Popen([python, "-c", "import threading, json, decimal"])
        time.sleep(delay)
        out = subprocess.run([tool, str(process.pid), "--repeat", "50", "--interval-us", "100"],
                             capture_output=True, timeout=60)
        assert out.returncode in (0, 1)
        process.wait()


def test_a_target_that_execs_or_crashes_is_followed():
    python = PYTHONS[max((v for v in PYTHONS if not v.endswith("t")), key=lambda v: int(v[2:]))]
    script = (
        "import os, sys, time\n"
        "n = int(sys.argv[1])\n"
        "def working():\n"
        "    end = time.time() + 0.15\n"
        "    while time.time() < end: pass\n"
        "if n == 3: print('ready', flush=True)\n"
        "working()\n"
        "if n: os.execv(sys.executable, [sys.executable, '-c', open('/proc/self/cmdline').read().split('\\0')[2], str(n - 1)])\n"
        "os.abort()\n"
    )
    with Target(python, script, "3") as target:
        result = dump(target.pid, "--states", "3", "--interval-us", "5000")
        assert target.process.wait(timeout=30) == -signal.SIGABRT
        seen = sum(s for stack, s in result["threads"][str(target.pid)]["stacks"].items() if "working" in stack)
        assert seen > 0.2


NATIVE = r"""
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
std::mutex mutex;
std::condition_variable ready;
volatile double sink;
volatile int size = 100000;
__attribute__((noinline)) double convolve(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += std::sin(i * 0.1) * i;
  return sum;
}
__attribute__((noinline)) double train_step(int n) { return convolve(n) + 1; }
__attribute__((noinline)) void wait_for_batch() {
  std::unique_lock lock(mutex);
  ready.wait(lock, [] { return false; });
}
int main() {
  std::thread loader(wait_for_batch);
  std::puts("ready");
  std::fflush(stdout);
  while (true) sink = train_step(size);
}
"""


def test_a_native_job_shows_its_functions_and_lines(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "job.cpp", tmp_path / "job"
    source.write_text(NATIVE)
    subprocess.run([compiler, "-std=c++17", "-O2", "-g", source, "-o", program, "-pthread"], check=True)
    with Target(str(program), "") as target:
        result = dump(target.pid, "--states", "4", "--interval-us", "20000")
    stacks = {tid: list(t["stacks"]) for tid, t in result["threads"].items()}
    assert all(len(stack.split(";")) <= 64 for each in stacks.values() for stack in each)
    waiting = [s for tid, each in stacks.items() if tid != str(target.pid) for s in each]
    assert any("wait_for_batch" in s for s in waiting)
    if "stacks.native" in result["missing"]:
        pytest.skip("running code can't be sampled here: " + result["missing"]["stacks.native"]["reason"])
    assert any("train_step" in s and "job.cpp:" in s and s.count("train_step (") == 1 for s in stacks[str(target.pid)])


UNDER_PYTHON = r"""
#include <semaphore.h>
__attribute__((noinline)) int flatout_spin_inner(volatile int *on) {
  int n = 0;
  while (*on) n++;
  return n;
}
__attribute__((noinline)) int flatout_spin_outer(volatile int *on) { return flatout_spin_inner(on) + 1; }
__attribute__((noinline)) int flatout_wait_inner(sem_t *never) { return sem_wait(never) + 1; }
__attribute__((noinline)) int flatout_wait_outer(void) {
  sem_t never;
  sem_init(&never, 0, 0);
  return flatout_wait_inner(&never) + 1;
}
"""

CALLS_NATIVE = r"""
import ctypes, sys, threading
native = ctypes.CDLL(sys.argv[1])
on = ctypes.c_int(1)
def waits():
    native.flatout_wait_outer()
def spins():
    native.flatout_spin_outer(ctypes.byref(on))
threading.Thread(target=waits, daemon=True).start()
print("ready", flush=True)
spins()
"""


@pytest.fixture(scope="module")
def native_library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("native")
    source, library = folder / "native.c", folder / "native.so"
    source.write_text(UNDER_PYTHON)
    subprocess.run([compiler, "-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", source, "-o", library,
                    "-pthread"], check=True)
    return str(library)


def in_order(names, stack):
    """Whether the functions occur one after the other, outermost first."""
    at = -1
    for name in names:
        at = stack.find(name, at + 1)
        if at < 0:
            return False
    return True


def test_native_code_stands_under_the_python_line_that_called_it(python, native_library):
    if subprocess.run([python, "-c", "import ctypes"], capture_output=True).returncode != 0:
        pytest.skip(f"{python} has no ctypes")
    waiting = ["waits (<string>:6)", "flatout_wait_outer", "flatout_wait_inner"]
    spinning = ["spins (<string>:8)", "flatout_spin_outer", "flatout_spin_inner"]
    stacks, sampled, deadline = set(), True, time.monotonic() + 60
    with Target(python, CALLS_NATIVE, native_library) as target:
        # On a busy machine the thread that runs may have no core whenever a sample is asked for.
        while time.monotonic() < deadline:
            result = dump(target.pid, "--states", "1.5", "--interval-us", "20000")
            stacks |= {s for t in result["threads"].values() if t["pid"] == target.pid for s in t["stacks"]}
            sampled = "stacks.native" not in result["missing"]
            wanted = [waiting, spinning] if sampled else [waiting]
            if all(any(in_order(names, s) for s in stacks) for names in wanted):
                break
    assert any(in_order(waiting, s) for s in stacks), stacks
    # What the interpreter does to call it is left out.
    assert not any("_PyEval" in s or "PyObject_" in s for s in stacks), stacks
    if not sampled:
        pytest.skip("running code can't be sampled here: " + result["missing"]["stacks.native"]["reason"])
    assert any(in_order(spinning, s) for s in stacks), stacks

"""`flatout attach` watches a job that runs already, from outside, and changes nothing in it."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from program import BIN, flatout, latest, read_line, wait_until

pytestmark = pytest.mark.skipif(not os.access(BIN, os.X_OK), reason=f"{BIN} is not built")


@pytest.fixture
def sleeper():
    job = subprocess.Popen([sys.executable, "-c", "import time\ndef waiting_here():\n    time.sleep(60)\nprint('ready', flush=True)\nwaiting_here()"],
                           stdout=subprocess.PIPE)
    read_line(job.stdout)
    yield job
    job.kill()
    job.wait()


def test_attach_for_a_while(tmp_path, sleeper):
    done = flatout("attach", str(sleeper.pid), "--seconds", "2", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert any(m["signal"] == "agent" for m in document["missing"])
    assert sleeper.poll() is None


def test_attach_without_end_is_not_over_at_once(tmp_path, sleeper):
    watcher = subprocess.Popen([BIN, "attach", str(sleeper.pid), "--seconds", "1e30", "--quiet"], cwd=tmp_path)
    assert wait_until(lambda: latest(tmp_path).exists() and (latest(tmp_path) / "series.bin").exists() and (latest(tmp_path) / "series.bin").stat().st_size > 0)
    assert watcher.poll() is None
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(60) == 0


def test_attach_ends_with_the_job_and_on_ctrl_c(tmp_path, sleeper):
    for end in (lambda w: w.send_signal(signal.SIGINT), lambda w: sleeper.kill()):
        watcher = subprocess.Popen([BIN, "attach", str(sleeper.pid)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert wait_until(lambda: latest(tmp_path).exists() and (latest(tmp_path) / "series.bin").exists() and (latest(tmp_path) / "series.bin").stat().st_size > 0)
        end(watcher)
        assert watcher.wait(60) == 0
        assert watcher.stderr.read()
        shutil.rmtree(tmp_path / "flatout-runs")


def test_attach_dump_shows_every_thread(tmp_path, sleeper):
    done = flatout("attach", str(sleeper.pid), "--dump", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"waiting_here" in done.stdout and str(sleeper.pid).encode() in done.stdout
    assert not (tmp_path / "flatout-runs").exists(), "a dump records nothing"


def test_attach_to_a_stopped_process_says_that_it_is_stopped(tmp_path, sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    stopped = pathlib.Path(f"/proc/{sleeper.pid}/stat")
    assert wait_until(lambda: ") T " in stopped.read_text())
    done = flatout("attach", str(sleeper.pid), "--seconds", "1", cwd=tmp_path)
    assert b"is stopped" in done.stderr and f"kill -CONT {sleeper.pid}".encode() in done.stderr
    assert ") T " in stopped.read_text(), "nothing in the job is changed"


@contextlib.contextmanager
def container(script):
    """The pid of a Python in a pid namespace of its own, which has said `ready` and its number there."""
    names = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    outer = subprocess.Popen(["unshare", *names, "--pid", "--fork", "--kill-child", sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said = read_line(outer.stdout)
        if not said:
            pytest.skip("lacks pid namespaces: " + outer.stderr.read().decode())
        assert said == "ready 1"
        yield int(pathlib.Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
    finally:
        outer.kill()
        outer.wait()


def test_the_loop_of_a_job_in_a_container_is_counted_from_outside(tmp_path):
    script = ("import os, time\nprint('ready', os.getpid(), flush=True)\n"
              "def train():\n    for step in range(100000):\n        time.sleep(0.02)\n        sum(range(20000))\ntrain()")
    with container(script) as pid:
        done = flatout("attach", str(pid), "--seconds", "4", "--json", "--quiet", cwd=tmp_path)
    steps = json.loads(done.stdout)["steps"]
    # Some 20 ms each, however slow the machine: in 4 s there cannot be more.
    assert 6 <= steps["count"] <= 200 and steps["median_ms"] >= 19, steps


def test_a_dump_without_permission_for_the_stacks_says_what_it_takes(tmp_path, sleeper):
    """Where the job may do more than who looks at it, as in a container without SYS_PTRACE."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("lacks root and setpriv to give up a capability")
    less = ["setpriv", "--bounding-set", "-sys_ptrace,-sys_admin", "--inh-caps", "-sys_ptrace,-sys_admin"]
    done = subprocess.run([*less, BIN, "attach", str(sleeper.pid), "--dump"], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0 and b"waiting_here" not in done.stdout
    assert b"CAP_SYS_PTRACE" in done.stderr, done.stderr


def test_the_stacks_of_a_job_in_a_container_are_read_from_outside(tmp_path):
    """Its Python knows its threads by other numbers than the host does."""
    script = ("import os, threading, time\ndef in_a_thread():\n    time.sleep(60)\nthreading.Thread(target=in_a_thread, daemon=True).start()\n"
              "def waiting_here():\n    time.sleep(60)\nprint('ready', os.getpid(), flush=True)\nwaiting_here()")
    with container(script) as pid:
        done = flatout("attach", str(pid), "--dump", cwd=tmp_path)
    assert b"waiting_here" in done.stdout and b"in_a_thread" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("pid, said", [("4194303", b"no process"), ("2", b"kernel"), ("0", b"not a process id"), ("-5", b"")])
def test_attach_says_why_not(tmp_path, pid, said):
    if pid == "2" and pathlib.Path("/proc/2/stat").exists() is False:
        pytest.skip("no kernel threads are visible here")
    done = flatout("attach", pid, cwd=tmp_path)
    assert done.returncode in (1, 2) and said in done.stderr

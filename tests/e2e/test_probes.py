"""What the probes say of a real, loaded process, against the kernel's own tools and files."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import multiprocessing, os, sys, tempfile, threading, time
def worker(seconds):
    end = time.time() + seconds
    while time.time() < end:
        sum(range(20000))
if __name__ == "__main__":
    block = bytearray(64 << 20)
    files = [open(os.devnull) for _ in range(20)]
    out = tempfile.NamedTemporaryFile()
    out.write(block[: 8 << 20])
    out.flush()
    os.fsync(out.fileno())
    data = open(out.name, "rb")
    data.read(4 << 20)
    child = multiprocessing.Process(target=worker, args=(8,))
    child.start()
    print("ready", child.pid, flush=True)
    worker(8)
    child.join()
"""


def find_dump() -> str:
    named = os.environ.get("FLATOUT_PROBE_DUMP")
    built = sorted(ROOT.glob("build/*/src/probe/probe_dump"), key=lambda p: p.stat().st_mtime)
    if not named and not built:
        pytest.skip("lacks probe_dump: set FLATOUT_PROBE_DUMP or build it")
    return named or str(built[-1])


class Dump:
    """The output of probe_dump: (signal, key) -> (last, first)."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.text = subprocess.run(
            [find_dump(), str(pid), str(seconds)], capture_output=True, text=True, check=True
        ).stdout
        self.values: dict[tuple[str, int], tuple[float, float]] = {}
        for match in re.finditer(
            r"^(\S+\.\S+) \S+ (\d+) .*? (\S+?)(?: first (\S+))?$", self.text, re.MULTILINE
        ):
            last = float(match[3]) if re.fullmatch(r"[-\d.e+]+", match[3]) else float("nan")
            self.values[(match[1], int(match[2]))] = (last, float(match[4] or last))

    def last(self, signal: str, key: int = 0) -> float:
        return self.values[(signal, key)][0]

    def increase(self, signal: str, key: int = 0) -> float:
        last, first = self.values[(signal, key)]
        return last - first


@pytest.fixture(scope="module")
def loaded():
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        job = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        assert job.stdout is not None
        child = int(job.stdout.readline().split()[1])
        # Read at the same time as the probes, so that moving values can be compared.
        began = time.monotonic()
        dump = Dump(job.pid, 4)
        status = Path(f"/proc/{job.pid}/status").read_text()
        facts = {
            "pid": job.pid,
            "child": child,
            "wall": time.monotonic() - began,
            "status": dict(
                line.split(":", 1) for line in status.splitlines() if ":" in line
            ),
            "stat": Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split(),
            "fds": len(os.listdir(f"/proc/{job.pid}/fd")),
            "meminfo": {
                line.split(":")[0]: int(line.split()[1]) * 1024
                for line in Path("/proc/meminfo").read_text().splitlines()
            },
            "dump": dump,
        }
        if shutil.which("ps"):
            facts["ps_rss"] = int(
                subprocess.check_output(["ps", "-o", "rss=", "-p", str(job.pid)], text=True)
            )
        yield facts
        job.kill()
        job.wait()


def test_memory_of_the_process_agrees_with_status_and_ps(loaded):
    dump, pid = loaded["dump"], loaded["pid"]
    rss = int(loaded["status"]["VmRSS"].split()[0]) * 1024
    assert dump.last("proc.rss_bytes", pid) == pytest.approx(rss, rel=0.02)
    assert dump.last("proc.rss_bytes", pid) > 64 << 20
    if "ps_rss" in loaded:
        assert dump.last("proc.rss_bytes", pid) == pytest.approx(loaded["ps_rss"] * 1024, rel=0.05)


def test_cpu_time_agrees_with_stat_and_with_its_threads(loaded):
    dump, pid = loaded["dump"], loaded["pid"]
    tick = 1e9 / os.sysconf("SC_CLK_TCK")
    ticks = (int(loaded["stat"][11]) + int(loaded["stat"][12])) * tick
    measured = dump.last("proc.cpu_user_ns", pid) + dump.last("proc.cpu_system_ns", pid)
    # The probes' last reading is at most a period and a half older.
    assert ticks - 1.5e9 <= measured <= ticks + tick
    # One busy thread: on a core or waiting for one, nearly all the time between the readings.
    thread = dump.increase("thread.on_cpu_ns", pid) + dump.increase("thread.run_delay_ns", pid)
    assert 0.6 * 3e9 <= thread <= 1.05 * loaded["wall"] * 1e9


def test_the_job_has_its_child_and_counts_both_processes(loaded):
    dump = loaded["dump"]
    assert f"process {loaded['child']} parent {loaded['pid']}" in dump.text
    own = sum(
        dump.increase(f"proc.cpu_{kind}_ns", pid)
        for kind in ("user", "system")
        for pid in (loaded["pid"], loaded["child"])
    )
    assert dump.increase("job.cpu_ns") == pytest.approx(own, rel=0.15, abs=5e7)


def test_descriptors_io_and_threads(loaded):
    dump, pid = loaded["dump"], loaded["pid"]
    assert dump.last("proc.fds", pid) == loaded["fds"]
    assert dump.last("proc.threads", pid) == int(loaded["status"]["Threads"])
    assert dump.last("proc.allowed_cores", pid) == len(os.sched_getaffinity(pid))
    assert dump.last("proc.write_chars", pid) >= 8 << 20
    assert dump.last("proc.read_chars", pid) >= 4 << 20
    assert dump.last("proc.map_limit", pid) > 0


def test_open_data_file_is_seen_as_cached(loaded):
    dump, pid = loaded["dump"], loaded["pid"]
    if ("proc.open_data_bytes", pid) not in dump.values:
        pytest.skip("lacks a local disk below the temporary folder")
    assert dump.last("proc.open_data_bytes", pid) == 8 << 20
    assert dump.last("proc.open_data_cached_bytes", pid) == 8 << 20


def test_memory_of_the_machine_agrees_with_meminfo(loaded):
    dump, meminfo = loaded["dump"], loaded["meminfo"]
    assert dump.last("mem.total_bytes") == meminfo["MemTotal"]
    assert dump.last("mem.available_bytes") == pytest.approx(
        meminfo["MemAvailable"], abs=0.1 * meminfo["MemTotal"]
    )
    assert dump.last("host.cores") == os.cpu_count()


def test_nothing_that_is_missing_is_delivered_as_zero(loaded):
    dump = loaded["dump"]
    missing = set(re.findall(r"^missing (\S+):", dump.text, re.MULTILINE))
    delivered = {signal for signal, _ in dump.values}
    assert not missing & delivered - {"other.read_bytes", "gpu.util_ratio"}


@pytest.mark.skipif(not Path("/proc/2/stat").exists(), reason="lacks a view of the whole machine")
def test_a_neighbour_and_a_left_over_are_told():
    with tempfile.TemporaryDirectory() as folder:
        orphan = Path(folder) / "old_run.py"
        ready = Path(folder) / "ready"
        orphan.write_text(
            "import pathlib, sys, time\nblock = bytearray(b'x') * (96 << 20)\n"
            "pathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)\n"
        )
        # Its parent and the leader of its session end at once.
        launch = subprocess.run(
            [
                sys.executable,
                "-c",
                "import subprocess, sys; null = subprocess.DEVNULL; print(subprocess.Popen("
                "[sys.executable, *sys.argv[1:]], stdin=null, stdout=null, stderr=null).pid)",
                str(orphan),
                str(ready),
            ],
            start_new_session=True,
            capture_output=True,
            text=True,
            check=True,
        )
        left_over = int(launch.stdout)
        deadline = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        burn = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
        try:
            time.sleep(1)
            dump = Dump(job.pid, 6)
        finally:
            for pid in (left_over, burn.pid, job.pid):
                os.kill(pid, 9)
            burn.wait()
            job.wait()
        assert dump.increase("other.cpu_ns", burn.pid) > 0
        assert dump.last("other.orphan", left_over) == 1
        assert dump.last("other.rss_bytes", left_over) > 90 << 20
        assert ("other.orphan", burn.pid) not in dump.values or dump.last(
            "other.orphan", burn.pid
        ) == 0

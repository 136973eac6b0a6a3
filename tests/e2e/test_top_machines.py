"""flatout top on machines that are not here: 5,000 processes, eight GPUs of which one is divided; and a process that reads at a known rate."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

import pytest
from screens import process, tmux, wait_for  # noqa: F401

PROCESSES, THREADS = 5000, 20000
STAT = "{tid} ({name}) S {ppid} 0 0 0 -1 4194304 0 0 0 0 {ticks} 0 0 0 20 0 4 0 {tid} 1000000 500 " + "0 " * 26 + "0 0\n"

# Reads its file at a mebibyte every tenth of a second by the clock, whatever the machine is busy with: after a delay it catches up.
READS = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
print('ready', flush=True)
begin = time.monotonic()
done = 0
while True:
    due = int((time.monotonic() - begin) * 10 * (1 << 20))
    while done < due:
        got = len(os.read(fd, min(1 << 16, due - done)))
        done += got
        if got == 0:
            sys.exit('the file has ended')
    time.sleep(0.005)
"""

GPUS = 8
DIVIDED = """7 mig 1
170 name Test Card MIG 1g.10gb
170 gpu_instance 9
170 compute_instance 0
170 mem_total 10737418240
170 mem_used 5368709120
170 process_0 {pid} 5000000000
172 name Test Card MIG 3g.40gb
172 gpu_instance 2
172 compute_instance 0
172 mem_total 42949672960
172 mem_used 13631488
"""


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(scope="module")
def crowd():
    """A /proc of 5,000 processes with four threads each. Process i is of rank i and used i ticks; all descend from process 1000."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("lacks root, or mount namespaces: the program's /proc cannot be another's")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as root:
        proc = pathlib.Path(root)
        put(proc / "stat", "cpu  1 0 1 1 0 0 0 0 0 0\ncpu0 1 0 1 1 0 0 0 0 0 0\nprocs_running 1\nprocs_blocked 0\n")
        put(proc / "meminfo", "MemTotal: 1000000 kB\nMemFree: 500000 kB\n")
        each = THREADS // PROCESSES
        for i in range(PROCESSES):
            pid = 1000 + i * each
            for t in range(each):
                put(proc / f"{pid}/task/{pid + t}/stat", STAT.format(tid=pid + t, name=f"thread{t}", ppid=1000, ticks=t))
            put(proc / f"{pid}/stat", STAT.format(tid=pid, name=f"process{i}", ppid=1000 if i else 0, ticks=i))
            put(proc / f"{pid}/status", "Uid:\t1000\t1000\t1000\t1000\n")
            (proc / f"{pid}/cmdline").write_bytes(b"train.py\0--rank\0%d.\0" % i)
        yield root


def with_proc(root, *command):
    """The command in a mount namespace whose /proc is that folder."""
    return ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc && exec "$@"', root, *command]


def test_a_crowd_is_listed_in_full(flatout, crowd):
    done = subprocess.run(with_proc(crowd, flatout, "top", "--json", "--delay", "0.1"), check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout)
    assert (seen["tasks"], seen["threads"]) == (PROCESSES, THREADS)
    assert [p["pid"] for p in seen["processes"]] == [1000 + 4 * i for i in range(PROCESSES)]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert [round(p["cpu_s"] / tick_s) for p in seen["processes"]] == list(range(PROCESSES))


def test_a_crowd_is_sorted_filtered_and_searched(flatout, tmux, crowd):
    screen = tmux(width=150, height=40, around=lambda command: with_proc(crowd, *command))
    screen.wait("5000 tasks 20000 threads")
    screen.keys("T")  # by time: the last process used most
    last = 1000 + 4 * (PROCESSES - 1)
    screen.wait(rf"Command\n *{last} ")
    screen.keys("I")
    screen.wait(r"Command\n *1000 ")
    screen.keys("End")
    screen.wait(rf"^ *{last} .*--rank 4999\.\nF1")
    screen.keys("F4")
    screen.text("rank 4321.")
    screen.keys("Enter")
    screen.wait(rf"Command +filter .*\n *{1000 + 4 * 4321} .*rank 4321\.\n *\n")
    screen.keys("F4", "Escape")
    screen.keys("/")
    screen.text("rank 777.")
    screen.keys("Enter")
    screen.wait(rf"^ *{1000 + 4 * 777} .*rank 777\.")
    screen.keys("F5", "Home")
    screen.wait(r"Command\n *1000 .*\n.*(├─|└─)")
    screen.keys("H")
    screen.wait(r"Command\n *1000 .*\n *100[123] .*thread[123]")  # each process with its threads
    screen.keys("-")
    screen.wait(r"^ *1000 .*\[\+19999\] ")


@pytest.fixture
def cards(flatout, tmp_path):
    """The environment in which NVML answers from a script, and a function that writes it for one process that holds memory."""
    library = pathlib.Path(flatout).resolve().parent / "nvml_stand_in"
    if not library.exists():
        pytest.skip("lacks the stand-in for NVML: it is built with the tests")
    script = tmp_path / "nvml"

    def write(pid):
        text = f"devices {GPUS}\ndriver 570.10\ncuda 12080\n"
        for i in range(GPUS):
            text += f"{i} name Test Card\n{i} mem_total 85899345920\n{i} mem_used {10737418240 * i}\n"
            if i < 6:  # the others tell no utilisation
                text += f"{i} util {12 * i}\n{i} mem_util 5\n"
        script.write_text(text + f"3 process_0 {pid} 9663676416\n" + DIVIDED.format(pid=pid) + "6 error 15\n")

    return {"LD_LIBRARY_PATH": str(library), "NVML_STAND_IN": str(script)}, write


def test_eight_gpus_and_who_holds_their_memory(flatout, tmux, cards):
    env, write = cards
    with process("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", ready=True) as child:
        write(child.pid)
        name = pathlib.Path(f"/proc/{child.pid}/comm").read_text().strip()
        screen = tmux(width=200, height=60, env=env)
        screen.wait(rf" 3 +36\.0% +30\.0G/80\.0G .*\n +held by +{child.pid} {name} 9\.00G")
        screen.wait(r" 5 +60\.0% ")
        screen.wait(r" 6 +GPU is lost")
        screen.wait(r" 7 +- +70\.0G/80\.0G +MIG 2 ")
        screen.wait(rf" 9\.0 +1g\.10gb +5\.00G/10\.0G +{child.pid} {name} 4\.66G")
        screen.wait(r" 2\.0 +3g\.40gb +13\.0M/40\.0G")
        # Curves: after some looks each has a column for each of them.
        screen.wait(r" 3 .* util +[▁-█]{3,} mem +[▁-█]{3,}")
        # A driver that tells more, or a process that ends, is seen at the next look.
        write(1 << 30)
        screen.wait(rf"held by +{1 << 30} \? 9\.00G")
        screen.run("resize-window", "-x", "80", "-y", "24")
        screen.wait(r" 7 +- +70\.0G/80\.0G +MIG 2")
        screen.keys("q")


def test_json_tells_gpus_as_their_driver_does(flatout, cards):
    env, write = cards
    write(os.getpid())

    def look():
        done = subprocess.run([flatout, "top", "--json", "--delay", "0.5"], check=True, capture_output=True, text=True, env={**os.environ, **env})
        return json.loads(done.stdout)["gpus"]

    gpus = wait_for(look, "the GPUs")
    assert [g["index"] for g in gpus] == list(range(GPUS))
    assert [g["util_ratio"] for g in gpus] == [0, 0.12, 0.24, 0.36, 0.48, 0.6, None, None]
    assert gpus[3]["processes"] == [{"pid": os.getpid(), "memory_bytes": 9663676416, "gpu_instance": None, "compute_instance": None}]
    assert gpus[6]["error"] == "GPU is lost" and gpus[6]["mem_total_bytes"] is None
    assert gpus[7]["mig_instances"] == [
        {"gpu_instance": 9, "compute_instance": 0, "profile": "1g.10gb", "mem_used_bytes": 5368709120, "mem_total_bytes": 10737418240},
        {"gpu_instance": 2, "compute_instance": 0, "profile": "3g.40gb", "mem_used_bytes": 13631488, "mem_total_bytes": 42949672960},
    ]
    assert gpus[7]["processes"] == [{"pid": os.getpid(), "memory_bytes": 5000000000, "gpu_instance": 9, "compute_instance": 0}]


def test_a_file_is_read_at_the_rate_that_its_reader_keeps(flatout, tmux, tmp_path):
    big = tmp_path / "big.bin"
    with big.open("wb") as f:
        f.truncate(4 << 30)  # sparse: it takes no room
    with process(READS, str(big), ready=True) as child:
        screen = tmux(str(child.pid), delay="2", width=200)
        screen.wait(rf"^ *{child.pid} ")
        screen.keys("l")

        # On a busy machine the reader is late in some interval and catches up in the next; a wrong figure is wrong in all.
        def rate():
            found = re.search(r"^ +\d+ +(\S+)M +- +\S+ +4\.00G +\S*big\.bin$", screen.screen(), re.M)
            return found and float(found.group(1)) == pytest.approx(10, rel=0.02)

        wait_for(rate, "10 MiB a second")
        assert child.poll() is None


def test_the_memory_panel_follows_the_cursor_to_its_control_group(flatout, tmux):
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    points = [m[1] for m in mounts if m[2] == "cgroup2"]
    if not points:
        pytest.skip("lacks control groups of version 2")
    group = pathlib.Path(points[0]) / f"flatout-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(512 << 20))
        (group / "memory.current").read_text()
    except OSError as e:
        if group.exists():
            group.rmdir()
        pytest.skip(f"lacks the right to make a control group of version 2 with memory: {e}")
    try:
        with process("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", ready=True) as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            screen = tmux(str(child.pid))
            screen.wait(rf"control group of {child.pid} \S+/512M")
            screen.keys("q")
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group's end")
        group.rmdir()

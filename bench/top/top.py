#!/usr/bin/env python3
"""What a refresh of `flatout top` costs in CPU time, beside htop's, and on a fake machine of 5,000 processes and 20,000 threads; and how
long it takes from its start to its first whole screen.

    python3 bench/top/top.py --flatout build/release/flatout --dump build/release/src/screen/screen_dump

Both programs run at the same time, each on a terminal of its own (200 x 60), with the same delay and the same columns, threads shown,
beside a process of 500 threads; their CPU time is taken from /proc at both ends of each round. Prints CSV.
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

THREADS = (
    "import threading, time\n"
    "for i in range(499): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    "print('ready', flush=True)\n"
    "n = 0\n"
    "while True:\n"
    "    time.sleep(0.01)\n"
)
# PID USER PRIORITY NICE M_VIRT M_RESIDENT STATE PERCENT_CPU PERCENT_MEM TIME Command
HTOPRC = """fields=0 48 17 18 38 39 2 46 47 49 1
hide_kernel_threads=1
hide_userland_threads=0
tree_view=0
sort_key=46
update_process_names=0
enable_mouse=1
delay=15
left_meters=AllCPUs Memory Swap
left_meter_modes=1 1 1
right_meters=Tasks LoadAverage Uptime
right_meter_modes=2 2 2
"""


def start(command, env):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **env})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    return pid, fd


def first_screen_ms(command, env, last):
    """From fork() until `last`, what stands at the end of a whole screen, has come."""
    began = time.perf_counter()
    pid, fd = start(command, env)
    seen = b""
    while last not in seen:
        seen += os.read(fd, 1 << 16)
    took = time.perf_counter() - began
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    return took * 1e3


def drain(fds, stop):
    while not stop.is_set():
        for fd in select.select(fds, [], [], 0.2)[0]:
            try:
                os.read(fd, 1 << 16)
            except OSError:
                return


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stat_line(pid, name, ppid, threads, ticks):
    return f"{pid} ({name}) S {ppid} {pid} {pid} 0 -1 4194304 0 0 0 0 {ticks} 0 0 0 20 0 {threads} 0 {1000 + pid} 1000000 500 " + "0 " * 26 + "0 0\n"


def fake_machine(root, processes, threads):
    """A tree of /proc files; its files are plain ones: what reading them costs is less than the kernel's."""
    proc = pathlib.Path(root, "proc")
    proc.mkdir(parents=True)
    (proc / "stat").write_text("cpu  1 0 1 1 0 0 0 0 0 0\ncpu0 1 0 1 1 0 0 0 0 0 0\nprocs_running 1\nprocs_blocked 0\n")
    (proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemFree: 500000 kB\n")
    each = threads // processes
    for i in range(processes):
        pid = 1000 + i * (each + 1)
        folder = proc / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(stat_line(pid, f"process{i}", 1, each, i % 100))
        (folder / "status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
        (folder / "cmdline").write_bytes(b"/usr/bin/python3\0train.py\0--rank\0%d\0" % i)
        (folder / "task" / str(pid) / "stat").write_text(stat_line(pid, f"process{i}", 1, each, 0))
        for t in range(1, each):
            task = folder / "task" / str(pid + t)
            task.mkdir()
            (task / "stat").write_text(stat_line(pid + t, "thread", 1, each, t))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flatout", default="build/release/flatout")
    parser.add_argument("--dump", default="build/release/src/screen/screen_dump")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15, help="of each round")
    parser.add_argument("--processes", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=20000)
    options = parser.parse_args()

    print("what,round,ms")
    for with_threads in (False, True):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as root:
            fake_machine(root, options.processes, options.threads)
            for n in range(options.rounds):
                words = [options.dump, root, "--bench", "5"] + (["threads"] if with_threads else [])
                cost = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                for part in ("look_ms", "sort_ms", "draw_ms"):
                    print(f"fake {cost['rows']} rows {part[:-3]},{n},{cost[part]}")

    for n in range(options.rounds):
        print(f"flatout top starts,{n},{first_screen_ms([options.flatout, 'top'], {}, b'Quit'):.1f}")
        if shutil.which("htop") is not None:
            print(f"htop starts,{n},{first_screen_ms(['htop'], {}, b'Quit'):.1f}")

    if shutil.which("htop") is None:
        print("bench/top: no htop here: nothing to compare with", file=sys.stderr)
        return
    job = subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, text=True)
    job.stdout.readline()
    home = tempfile.mkdtemp()
    pathlib.Path(home, "htoprc").write_text(HTOPRC)
    ours = start([options.flatout, "top", "--delay", "1.5"], {})
    theirs = start(["htop", "-d", "15"], {"HTOPRC": os.path.join(home, "htoprc")})
    stop = threading.Event()
    reader = threading.Thread(target=drain, args=([ours[1], theirs[1]], stop))
    reader.start()
    try:
        time.sleep(2)
        os.write(ours[1], b"H")  # threads, as htop shows them
        time.sleep(3)
        for n in range(options.rounds):
            before = cpu_s(ours[0]), cpu_s(theirs[0])
            time.sleep(options.seconds)
            refreshes = options.seconds / 1.5
            print(f"flatout top,{n},{(cpu_s(ours[0]) - before[0]) * 1e3 / refreshes:.2f}")
            print(f"htop,{n},{(cpu_s(theirs[0]) - before[1]) * 1e3 / refreshes:.2f}")
    finally:
        stop.set()
        reader.join()
        for pid, _ in (ours, theirs):
            os.kill(pid, signal.SIGTERM)
        job.kill()
        shutil.rmtree(home)


if __name__ == "__main__":
    main()

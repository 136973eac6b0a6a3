#!/usr/bin/env python3
"""The figures of `flatout top` beside those of iostat and pidstat (package sysstat), on a machine under load.

    python3 bench/top/figures.py --flatout build/release/flatout --rounds 5

Load: as many busy processes as cores, one of them at half speed, and one that writes and syncs. Each round all three programs measure the
same ten seconds; what differs is what lies between their starts. Prints CSV: figure, round, ours, the peer's, difference in percent. Exits
with 1 where the median difference of a figure is over 2 %.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SPIN = "while True:\n    pass\n"
HALF = (
    "import time\n"
    "while True:\n"
    "    end = time.monotonic() + 0.01\n"
    "    while time.monotonic() < end: pass\n"
    "    time.sleep(0.01)\n"
)
WRITES = (
    "import os, sys, time\nfd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)\n"
    "while True:\n    os.pwrite(fd, b'x' * (4 << 20), 0)\n    os.fsync(fd)\n    time.sleep(0.02)\n"
)


def iostat_disks(text):
    statistics_ = json.loads(text)["sysstat"]["hosts"][0]["statistics"][0]
    return {d["disk_device"]: d for d in statistics_["disk"]}


def pidstat_rows(text):
    heading = next(line for line in text.splitlines() if line.startswith("#")).lstrip("# ").split()
    rows = [dict(zip(heading, line.split())) for line in text.splitlines() if line and line[0].isdigit()]
    return {int(row["PID"]): row for row in rows}


def one_round(flatout, pids, seconds):
    """(figure, ours, the peer's) of one measurement by all three."""
    env = {**os.environ, "LC_ALL": "C", "S_TIME_FORMAT": "ISO"}
    commands = [
        [flatout, "top", "--json", "--delay", str(seconds)],
        ["iostat", "-d", "-x", "-y", "-o", "JSON", str(seconds), "1"],
        ["pidstat", "-h", "-u", "-r", "-d", "-p", ",".join(map(str, pids.values())), str(seconds), "1"],
    ]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True, env=env) for c in commands]
    ours, disks, rows = (p.communicate()[0] for p in running)
    ours, disks, rows = json.loads(ours), iostat_disks(disks), pidstat_rows(rows)
    tasks = {p["pid"]: p for p in ours["processes"]}
    for disk in ours["disks"]:
        peer = disks.get(disk["name"])
        if peer is None or peer["w/s"] + peer["r/s"] < 1:
            continue
        count = peer["r/s"] + peer["w/s"]
        yield f"{disk['name']} busy", disk["busy_ratio"], peer["util"] / 100
        yield f"{disk['name']} written", disk["write_bytes_per_s"], peer["wkB/s"] * 1024
        yield f"{disk['name']} requests", disk["requests_per_s"], count
        await_s = (peer["r/s"] * peer["r_await"] + peer["w/s"] * peer["w_await"]) / count / 1e3
        yield f"{disk['name']} latency", disk["latency_s"], await_s
    for name, pid in pids.items():
        yield f"{name} cpu", tasks[pid]["cpu_ratio"], float(rows[pid]["%CPU"]) / 100
        yield f"{name} memory", tasks[pid]["rss_bytes"], float(rows[pid]["RSS"]) * 1024
    yield "writes written", tasks[pids["writes"]]["write_bytes_per_s"], float(rows[pids["writes"]]["kB_wr/s"]) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flatout", default="build/release/flatout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10, help="of each round")
    parser.add_argument("--folder", default=".", help="on the disk that is written to")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        jobs = {f"spins{i}": [sys.executable, "-c", SPIN] for i in range((os.cpu_count() or 1) - 1)}
        jobs["half"] = [sys.executable, "-c", HALF]
        jobs["writes"] = [sys.executable, "-c", WRITES, str(pathlib.Path(folder, "written"))]
        running = {name: subprocess.Popen(command) for name, command in jobs.items()}
        pids = {name: p.pid for name, p in running.items()}
        differences = {}
        try:
            print("figure,round,ours,peer,percent")
            for n in range(options.rounds):
                for figure, ours, peer in one_round(options.flatout, pids, options.seconds):
                    percent = 100 * (ours / peer - 1) if peer else 0.0
                    differences.setdefault(figure, []).append(abs(percent))
                    print(f"{figure},{n},{ours:.6g},{peer:.6g},{percent:+.2f}", flush=True)
        finally:
            for p in running.values():
                p.kill()
                p.wait()
    far = {figure: statistics.median(d) for figure, d in differences.items() if statistics.median(d) > 2}
    for figure, percent in far.items():
        print(f"bench/top: {figure} differs by {percent:.1f} %", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())

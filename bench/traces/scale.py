#!/usr/bin/env python3
"""What large traces cost `flatout trace`: peak memory, CPU and wall time of each command, a line each.

    FLATOUT_BIN=build/release/flatout python3 bench/traces/scale.py FOLDER [--gigabytes 10] [--ranks 1000] [--rank-mb 35]

FOLDER is scratch space for the traces, which make_trace.py beside this file makes. The ranks share one file by links, so that disk space is
that of one.
"""

import argparse
import csv
import os
import pathlib
import sys
import time

from make_trace import write_trace

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results" / "trace_scale.csv"

def run(command: list[str]) -> dict[str, float]:
    begin = time.monotonic()
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command[:4])} failed with {status}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.monotonic() - begin, "rss_mb": usage.ru_maxrss / 1024}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--operators", type=int, default=3, help="nested around each launch: the fewer, the more of the file is events of a device")
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--rank-mb", type=float, default=35)
    arguments = parser.parse_args()
    flatout = os.environ.get("FLATOUT_BIN", "build/release/flatout")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = []

    def measure(what: str, megabytes: float, command: list[str]) -> None:
        row = {"what": what, "mb": megabytes, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], **run(command)}
        rows.append(row)
        print(f"{what:28} {megabytes:9.0f} MB {row['cpu_s']:8.2f} s CPU {row['wall_s']:8.2f} s wall {row['rss_mb']:8.0f} MB peak "
              f"{megabytes / 1000 / row['cpu_s']:6.2f} GB/s of CPU time", flush=True)

    if arguments.gigabytes > 0:
        large = arguments.folder / "large.json"
        print(f"{large.name}: {write_trace(large, int(arguments.gigabytes * 1e9), arguments.operators)}")
        megabytes = large.stat().st_size / 1e6
        measure("summary, one core", megabytes, ["taskset", "-c", "0", flatout, "trace", "summary", "--json", str(large)])
        measure("summary", megabytes, [flatout, "trace", "summary", "--json", str(large)])
        measure("slice", megabytes, [flatout, "trace", "slice", str(large), "--step", "3-5", "-o", str(arguments.folder / "slice.json")])
        measure("report", megabytes, [flatout, "trace", "report", str(large), "-o", str(arguments.folder / "page.html")])
        large.unlink()
    if arguments.ranks > 0:
        one = arguments.folder / "rank.json"
        write_trace(one, int(arguments.rank_mb * 1e6))
        names = []
        for rank in range(arguments.ranks):
            link = arguments.folder / f"rank{rank}.json"
            link.unlink(missing_ok=True)
            link.symlink_to(one.name)
            names.append(str(link))
        measure(f"summary, {arguments.ranks} ranks", arguments.ranks * one.stat().st_size / 1e6, [flatout, "trace", "summary", "--json", *names])
        for name in names:
            pathlib.Path(name).unlink()
        one.unlink()
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

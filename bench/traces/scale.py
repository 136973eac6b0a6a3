#!/usr/bin/env python3
"""What large traces cost `flatout trace`: peak memory, CPU and wall time of each command, a line each.

    FLATOUT_BIN=build/release/flatout python3 bench/traces/scale.py FOLDER [--gigabytes 10] [--ranks 1000] [--rank-mb 35]

FOLDER is scratch space for the traces, which are made by repeating steps of a synthetic data-parallel job with real-looking names and
arguments (about 230 bytes an event, a quarter of them on the device). The ranks share one file by links, so that disk space is that of one.
"""

import argparse
import csv
import os
import pathlib
import sys
import time

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results" / "trace_scale.csv"

OPERATOR = ('{"ph": "X", "cat": "cpu_op", "name": "aten::%s", "pid": 4711, "tid": 4711, "ts": %d.%03d, "dur": %d.125, '
            '"args": {"External id": %d, "Sequence number": %d, "Fwd thread id": 0, "Ev Idx": %d}}')
LAUNCH = ('{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711, "ts": %d.%03d, "dur": 4.250, '
          '"args": {"External id": %d, "cbid": 211, "correlation": %d}}')
KERNEL = ('{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": %d, "ts": %d.%03d, "dur": %d.500, "args": {"External id": %d, '
          '"queued": 0, "device": 0, "context": 1, "stream": %d, "correlation": %d, "registers per thread": 32, '
          '"shared memory": 0, "blocks per SM": 12.5, "warps per SM": 100.0, "grid": [1350, 1, 1], "block": [256, 1, 1], '
          '"est. achieved occupancy %%": 75}}')
FLOW = '{"ph": "s", "id": %d, "pid": 4711, "tid": 4711, "ts": %d.%03d, "cat": "ac2g", "name": "ac2g"}'
NAMES = ["mm", "addmm", "relu", "batch_norm", "convolution", "add_", "threshold_backward", "native_batch_norm_backward"]
KERNELS = [f"void at::native::vectorized_elementwise_kernel<{k}, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)"
           for k in range(30)]


def write_trace(path: pathlib.Path, size: int) -> int:
    """Steps until the file has `size` bytes. Returns the number of events."""
    events, now, number, step = 0, 1000, 0, 0
    with path.open("w", buffering=1 << 20) as out:
        out.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1000}, "traceEvents": [\n')
        first, written = True, 0
        while written < size:
            lines, begin = [], now
            for k in range(600):
                number += 1
                lines.append(OPERATOR % (NAMES[k % 8], now, number % 1000, 18, number, number, number))
                lines.append(LAUNCH % (now + 5, number % 1000, number, number))
                lines.append(FLOW % (number, now + 5, number % 1000))
                collective = k % 60 == 59
                lines.append(KERNEL % ("ncclDevKernel_AllReduce_Sum_f32_RING_LL" if collective else KERNELS[k % 30],
                                       20 if collective else 7, now + 12, number % 1000, 60 if collective else 14, number,
                                       20 if collective else 7, number))
                now += 20
            lines.append('{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 4711, "tid": 4711, "ts": %d.000, "dur": %d.000}'
                         % (step, begin, now - begin))
            step += 1
            text = ",\n".join(lines)
            out.write(text if first else ",\n" + text)
            written += len(text)
            first = False
            events += len(lines)
        out.write("\n]}\n")
    return events


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
        events = write_trace(large, int(arguments.gigabytes * 1e9))
        megabytes = large.stat().st_size / 1e6
        print(f"{large.name}: {events} events")
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

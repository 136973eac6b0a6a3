#!/usr/bin/env python3
"""Prints, for each trace, peak over live peak, smallest card and driver calls of expandable segments and of the arena: in all, and a step after the first.

With --scale every size is so many times what was recorded, as of a job that is larger.

usage: steps.py [--scale N] FLATOUT TRACE.jsonl.gz...
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import tempfile


def replay(flatout: str, path: str) -> dict:
    return {r["policy"]: r for r in json.loads(subprocess.run([flatout, "devmem", "replay", "--json", path], capture_output=True, check=True).stdout)}


def scaled(path: str, folder: str, scale: float) -> str:
    out = pathlib.Path(folder) / pathlib.Path(path).name.removesuffix(".gz")
    with open(out, "w") as file:
        for op in map(json.loads, gzip.open(path, "rt")):
            if op["op"] == "a":
                op["size"] = int(op["size"] * scale)
            print(json.dumps(op), file=file)
    return str(out)


def first_step(path: str, folder: str) -> str:
    out, marks = pathlib.Path(folder) / "first", 0
    with open(out, "w") as file:
        for line in open(path):
            marks += json.loads(line)["op"] == "mark"
            if marks > 1:
                break
            file.write(line)
    return str(out)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--scale", type=float, default=1)
    options.add_argument("flatout")
    options.add_argument("traces", nargs="+")
    given = options.parse_args()
    print("| trace | live peak, MiB | reserved: expandable, arena | smallest card: expandable, arena | calls: expandable, arena | a step after the first |")
    print("| --- | --- | --- | --- | --- | --- |")
    for trace in given.traces:
        with tempfile.TemporaryDirectory() as folder:
            file = scaled(trace, folder, given.scale)
            whole, first = replay(given.flatout, file), replay(given.flatout, first_step(file, folder))
        both = [whole[p] for p in ("torch_expandable", "arena")]
        live = both[0]["peak_live_bytes"]
        ratio = lambda key: ", ".join(f"{r[key] / live:.3f}" for r in both)
        later = ", ".join(f"{(r['driver_calls'] - first[r['policy']]['driver_calls']) / (r['steps'] - 1):.1f}" if r["steps"] > 1 else "-" for r in both)
        name = pathlib.Path(trace).name.split(".")[0]
        print(f"| {name} | {live / 2**20:.0f} | {ratio('peak_reserved_bytes')} | {ratio('smallest_card_bytes')} | {both[0]['driver_calls']}, {both[1]['driver_calls']} | {later} |", flush=True)


if __name__ == "__main__":
    main()

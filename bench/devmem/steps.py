#!/usr/bin/env python3
"""Prints, for each trace, peak over live peak, smallest card and driver calls of expandable segments and of the arena: in all, and a step after the first.

usage: steps.py FLATOUT TRACE.jsonl.gz...
"""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile


def replay(flatout: str, path: str) -> dict:
    return {r["policy"]: r for r in json.loads(subprocess.run([flatout, "devmem", "replay", "--json", path], capture_output=True, check=True).stdout)}


def first_step(path: str, folder: str) -> str:
    out, marks = pathlib.Path(folder) / "first.jsonl", 0
    with open(out, "w") as file:
        for line in gzip.open(path, "rt"):
            marks += json.loads(line)["op"] == "mark"
            if marks > 1:
                break
            file.write(line)
    return str(out)


def main() -> None:
    flatout, *traces = sys.argv[1:]
    print("| trace | live peak, MiB | reserved: expandable, arena | smallest card: expandable, arena | calls: expandable, arena | a step after the first |")
    print("| --- | --- | --- | --- | --- | --- |")
    for trace in traces:
        with tempfile.TemporaryDirectory() as folder:
            whole, first = replay(flatout, trace), replay(flatout, first_step(trace, folder))
        both = [whole[p] for p in ("torch_expandable", "arena")]
        live = both[0]["peak_live_bytes"]
        ratio = lambda key: ", ".join(f"{r[key] / live:.3f}" for r in both)
        later = ", ".join(f"{(r['driver_calls'] - first[r['policy']]['driver_calls']) / (r['steps'] - 1):.1f}" if r["steps"] > 1 else "-" for r in both)
        name = pathlib.Path(trace).name.split(".")[0]
        print(f"| {name} | {live / 2**20:.0f} | {ratio('peak_reserved_bytes')} | {ratio('smallest_card_bytes')} | {both[0]['driver_calls']}, {both[1]['driver_calls']} | {later} |", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Holds `flatout devmem replay` to the real allocators on recorded traces: peak, driver calls, and the smallest card.

usage: compare.py FLATOUT TORCH_ORACLE TF_ORACLE TRACE.jsonl.gz...   (exit code 1 if anything differs)
"""

import gzip
import json
import subprocess
import sys

PAGE = 2 << 20
UNLIMITED = 1 << 46


def ops_of(path: str) -> str:
    lines = [json.loads(line) for line in gzip.open(path, "rt")]
    return "".join(f"a {x['id']} {x['size']} {x.get('stream', 0)}\n" if x["op"] == "a" else f"f {x['id']}\n" for x in lines if x["op"] in "af")


def original(words: list, ops: str) -> list[str]:
    return subprocess.run([str(word) for word in words], input=ops, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def main() -> int:
    flatout, torch, tf, *traces = sys.argv[1:]
    equal = True
    for trace in traces:
        ops = ops_of(trace)
        ours = {r["policy"]: r for r in json.loads(subprocess.run([flatout, "devmem", "replay", "--json", trace], capture_output=True, check=True).stdout)}
        for policy, settings in [("torch", ""), ("torch_expandable", "expandable_segments:True"), ("tf_growth", None)]:
            command = [tf, 1 << 36, 1 << 36, 1] if settings is None else [torch, UNLIMITED, settings, 0]
            peak, calls = (int(line.split()[1]) for line in original(command, ops)[-2:])
            same = (peak, calls) == (ours[policy]["peak_reserved_bytes"], ours[policy]["driver_calls"])
            if settings is not None:
                card = ours[policy]["smallest_card_bytes"]
                refused = ["x" in original([torch, size, settings, 0], ops) for size in (card, card - PAGE)]
                same = same and refused == [False, True]
            equal = equal and same
            print(f"{trace} {policy}: {'equal' if same else 'DIFFERENT'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())

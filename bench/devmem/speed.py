#!/usr/bin/env python3
"""Times Flatout's policies beside PyTorch's and TensorFlow's own allocators on the same operations, in turns, by CPU time.

usage: speed.py FLATOUT_SPEED TORCH_ORACLE TF_ORACLE [--rounds 7] [TRACE.jsonl.gz...]

Without traces: N live blocks of 256 bytes to 1 MiB, of which random ones are freed and allocated again.
"""

import argparse
import random
import statistics
import subprocess

from compare import ops_of

CARD = 1 << 40


def churn(blocks: int) -> str:
    draw = random.Random(blocks)
    size = lambda: int(2 ** draw.uniform(8, 20))
    lines = [f"a {i} {size()} 0" for i in range(blocks)]
    live, fresh = list(range(blocks)), blocks
    for _ in range(min(4 * blocks, 1_000_000)):
        at = draw.randrange(blocks)
        lines += [f"f {live[at]}", f"a {fresh} {size()} 0"]
        live[at], fresh = fresh, fresh + 1
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs=3)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_intermixed_args()
    ours, torch, tf = args.programs
    contenders = {
        "arena": [ours, "arena"], "pool": [ours, "pool"], "our torch": [ours, "torch"], "our tf_growth": [ours, "tf_growth"],
        "torch": [torch, CARD, "", 0], "torch_expandable": [torch, CARD, "expandable_segments:True", 0], "tf": [tf, CARD, CARD, 1],
    }
    cases = {path.rsplit("/", 1)[-1].split(".")[0]: ops_of(path) for path in args.traces} or {f"churn {n}": churn(n) for n in (1_000, 10_000, 100_000, 1_000_000)}
    print("case,allocator,ns_per_pair,least,most,driver_calls_when_timed,heap_bytes_per_live_block")
    for name, ops in cases.items():
        passes = max(1, 300_000 // ops.count("a "))
        got: dict = {}
        for _ in range(args.rounds):
            for who, command in contenders.items():
                answer = subprocess.run([str(word) for word in [*command, passes]], input=ops, capture_output=True, text=True, check=True).stdout
                got.setdefault(who, []).append(dict(line.split() for line in answer.splitlines()))
        for who, answers in got.items():
            times = [float(a["ns_per_pair"]) for a in answers]
            last = answers[-1]
            print(f"{name},{who},{statistics.median(times):.1f},{min(times):.1f},{max(times):.1f},{last['calls_when_timed']},{int(last['heap_bytes']) / int(last['live_blocks']):.0f}", flush=True)


if __name__ == "__main__":
    main()

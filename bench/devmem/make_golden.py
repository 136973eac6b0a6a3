#!/usr/bin/env python3
"""Writes the golden files of the two real allocators: random requests and what the original answers.

usage: make_golden.py TORCH_ORACLE TF_ORACLE OUT   (the oracles: see oracle/README.md)

A file is one case: a line "POLICY key=value ..." and a line an operation: "a ID SIZE STREAM OFFSET" or "f ID"; OFFSET x: out of memory.
The last two lines are the peak that was reserved and the number of driver calls, of the original.
"""

import pathlib
import random
import subprocess
import sys

MIB = 1 << 20


def requests(seed: int, count: int, shape: str, streams: int) -> list[tuple]:
    """A walk that allocates and frees: `mixed` sizes of all orders, `model` few sizes again and again, `tight` mostly large."""
    rng = random.Random(seed)
    menu = [rng.choice([3 << 10, 300 << 10, 3 * MIB, 9 * MIB, 24 * MIB, 70 * MIB]) * rng.randint(1, 5) for _ in range(12)]
    live, ops = [], []
    for number in range(count):
        if live and rng.random() < (0.35 if len(live) < 30 else 0.52):
            ops.append(("f", live.pop(rng.randrange(len(live)) if rng.random() < 0.6 else -1)))
            continue
        if shape == "model":
            size = rng.choice(menu)
        elif shape == "tight":
            size = rng.randint(1, 90 * MIB)
        else:
            size = int(2 ** rng.uniform(0, 27))
        live.append(number)
        ops.append(("a", number, size, rng.randrange(streams)))
    return ops


def cases():
    unlimited = 1 << 40
    for seed, (shape, capacity, streams) in enumerate(
        [("mixed", unlimited, 1), ("model", unlimited, 1), ("model", unlimited, 3), ("tight", 1500 * MIB, 1), ("mixed", 400 * MIB, 2), ("tight", 900 * MIB, 2)]
    ):
        ops = requests(seed, 500, shape, streams)
        for settings in ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]:
            yield f"torch{seed}_{settings.partition(':')[0] or 'native'}", "torch", {"capacity": capacity, "settings": settings, "fraction": 0}, ops
        yield f"torch{seed}_collects", "torch", {"capacity": 1 << 31, "settings": "garbage_collection_threshold:0.3", "fraction": 0.9}, ops
    for seed, (shape, capacity, limit) in enumerate(
        [("mixed", unlimited, unlimited), ("model", unlimited, unlimited), ("tight", unlimited, 1500 * MIB), ("mixed", 400 * MIB, unlimited), ("tight", 1100 * MIB, 5000 * MIB)]
    ):
        ops = requests(seed + 100, 500, shape, 1)
        for growth in (0, 1):
            if growth or limit < capacity:
                yield f"tf{seed}_{'growth' if growth else 'all'}", "tf", {"capacity": capacity, "limit": limit, "growth": growth}, ops


def main() -> int:
    oracles = {"torch": sys.argv[1], "tf": sys.argv[2]}
    out = pathlib.Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    for name, policy, options, ops in cases():
        if not pathlib.Path(oracles[policy]).exists():
            continue
        text = "".join(" ".join(map(str, op)) + "\n" for op in ops)
        done = subprocess.run([oracles[policy], *map(str, options.values())], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{name}: {done.stderr[-500:]}", file=sys.stderr)
            return 1
        answers = iter(done.stdout.split("\n"))
        lines = [f"{policy} " + " ".join(f"{key}={value}" for key, value in options.items())]
        lines += [" ".join(map(str, op)) + (f" {next(answers)}" if op[0] == "a" else "") for op in ops]
        lines += [next(answers), next(answers)]
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

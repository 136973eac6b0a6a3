#!/usr/bin/env python3
"""`flatout cache` on a tree of 2 GB: drop, warm and status against fincore, what each costs, and that no file is written to.

    python3 bench/cache/tree.py --flatout build/release/flatout --folder .

Makes 64 files of 32 MB below a folder on a real disk, and removes them again. Prints CSV; exits with 1 where fincore (util-linux) sees
other pages, a file has changed, or a command has written a block.
"""

import argparse
import hashlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

FILES, FILE_BYTES = 64, 32 << 20


def by_fincore(files):
    out = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)], check=True, capture_output=True, text=True)
    return sum(map(int, out.stdout.split()))


def state(files):
    return [(p.stat().st_mtime_ns, p.stat().st_ctime_ns, p.stat().st_size) for p in files]


def content(files):
    return [hashlib.blake2b(path.read_bytes()).hexdigest() for path in files]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flatout", default="build/release/flatout")
    parser.add_argument("--folder", default=".", help="on a real disk with 2 GB of room")
    options = parser.parse_args()
    if shutil.which("fincore") is None:
        sys.exit("bench/cache: no fincore here (util-linux)")
    wrong = []

    def measured(what, *words):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        out = subprocess.run([options.flatout, "cache", *words, "--json", folder], check=True, capture_output=True, text=True).stdout
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if after.ru_oublock != before.ru_oublock:
            wrong.append(f"{what} wrote {after.ru_oublock - before.ru_oublock} blocks")
        print(f"{what},{took:.3f},{cpu:.3f},{by_fincore(files)}", flush=True)
        return json.loads(out)

    def expect(what, seen, wanted):
        if seen != wanted:
            wrong.append(f"{what}: {seen}, not {wanted}")

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = [pathlib.Path(folder, f"{i // 8}", f"{i:02}.bin") for i in range(FILES)]
        for path in files:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(FILE_BYTES))
        subprocess.run(["sync", "-f", folder], check=True)
        whole, sums, before = FILES * FILE_BYTES, content(files), state(files)
        print("what,wall_s,cpu_s,cached_bytes_by_fincore")
        expect("dropped", measured("drop", "drop")["after_bytes"], by_fincore(files))
        expect("left after drop", by_fincore(files), 0)
        expect("status, cold", measured("status cold", "status")["cached_bytes"], 0)
        warmed = measured("warm", "warm")
        if warmed["stopped"]:
            print("bench/cache: warm stopped for want of free memory", file=sys.stderr)
        else:
            expect("read by warm", warmed["read_bytes"], whole)
            expect("cached after warm", by_fincore(files), whole)
        expect("status, warm", measured("status warm", "status")["cached_bytes"], by_fincore(files))
        measured("warm again", "warm")
        measured("drop again", "drop")
        expect("left after drop", by_fincore(files), 0)
        expect("times and sizes", state(files), before)
        expect("content", content(files), sums)
    for line in wrong:
        print("bench/cache: " + line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

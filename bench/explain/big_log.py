#!/usr/bin/env python3
"""`flatout explain` on a log of 1 GB, the error at its end, beside `wc -l` and `grep -c` for one word.

    python3 bench/explain/big_log.py --flatout build/release/flatout --rounds 5

Two logs: what trainers print, and one full of words that rules look for ("error", "CUDA", "batch_size") on lines that no rule matches. Each
is read from the page cache, by name and by standard input. Prints CSV; exits with 1 where the answer is wrong or the peak of memory is over
64 MB.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

LINES = {
    "plain": "Epoch {e} [{i}/5005]  Time  0.412 ( 0.418)  Data  0.001 ( 0.002)  Loss 2.{r:04} (2.5143)  Acc@1  48.44 ( 46.07)  Acc@5  71.88 ( 70.96)\n",
    "hard": "[rank{r}] INFO mean squared error: 0.{r:04} batch_size=64 CUDA graphs on, NCCL INFO Channel 00/0 : 0[1b000] -> 1[1c000] via P2P/IPC {i}\n",
}
ERROR = (
    "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    y = net(x)\n"
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
)
KIND = "cublas_not_initialized"


def write_log(path, line, size):
    block = "".join(line.format(e=i // 5005, i=i, r=i * 7919 % 10000) for i in range(20000)).encode()
    with open(path, "wb") as file:
        while file.tell() < size:
            file.write(block)
        file.write(ERROR.encode())


def measured(command, **more):
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return out, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flatout", default="build/release/flatout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--folder", default=".", help="with room for the log")
    options = parser.parse_args()
    wrong = []
    print("log,what,round,wall_s,cpu_s,peak_mb")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        log = pathlib.Path(folder, "train.log")
        for name, line in LINES.items():
            write_log(log, line, options.bytes)
            for n in range(options.rounds):
                for what, command in (("explain", [options.flatout, "explain", "--json", log]), ("explain, standard input", [options.flatout, "explain", "--json"]),
                                      ("wc -l", ["wc", "-l", log]), ("grep -c", ["grep", "-c", "Traceback", log])):
                    with open(log, "rb") as file:
                        out, wall, cpu, peak = measured(command, stdin=file)
                    print(f"{name},{what},{n},{wall:.3f},{cpu:.3f},{peak / 1e6:.1f}", flush=True)
                    if what.startswith("explain"):
                        answer = json.loads(out)
                        if answer["kind"] != KIND:
                            wrong.append(f"{name}: {answer['kind']}, not {KIND}")
                        if peak > 64e6:
                            wrong.append(f"{name}: {peak / 1e6:.0f} MB of memory")
    for line in wrong:
        print("bench/explain: " + line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

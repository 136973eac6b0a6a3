"""One rank slowed by each of five causes, and balanced ranks: is the rank named, and its own cause?

    FLATOUT_BIN=build/release/flatout build/venv/bin/python bench/ranks/causes.py

Real ranks on this machine, rank 1 the slow one: of tests/jobs/ranks.py over gloo, the same over MPI (mpi4py below mpirun),
and of the embedded trainer below mpirun (`--engines cpp`, whose causes are those of `--inject`). A machine that does
nothing else is needed, or `cpu.noisy_neighbour` is a true finding in every run. `quota` needs root and a writable
cgroup v1. Writes bench/results/rank_causes.csv: for each cause how many runs named rank 1, its cause, another rank.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))
import groups  # noqa: E402

JOB = ROOT / "tests" / "jobs" / "ranks.py"
RESULTS = ROOT / "bench" / "results" / "rank_causes.csv"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]
INJECTED = ("input.decode_cpu", "mem.page_faults", "stall.checkpoint", "stall.logging", "stall.idle_wait")
# What a person would accept as exact.
EXPECTED = {
    "none": set(),
    **{cause: {cause} for cause in INJECTED},
    "input.decode_cpu": {"input.decode_cpu", "input.too_few_workers"},
    "decode": {"input.decode_cpu", "input.too_few_workers"},
    "neighbour": {"cpu.noisy_neighbour"},
    "quota": {"cpu.throttled"},
    "faults": {"mem.page_faults"},
    "sleep": {"stall.idle_wait"},
}


@contextlib.contextmanager
def quota():
    """A group whose processes get a third of a core."""
    folder = Path(f"/sys/fs/cgroup/cpu/ranks-{os.getpid()}")
    folder.mkdir()
    try:
        (folder / "cpu.cfs_quota_us").write_text("33000")
        yield {"RANKS_GROUP": str(folder)}
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


# As ranks have them in pods or steps of their own: a control group and a recorder for each.
IN_ITS_GROUP = """if [ "${RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ]; then echo $$ > $RANKS_GROUP/cgroup.procs; fi
exec "$@"
"""


@contextlib.contextmanager
def neighbour():
    """A busy program on the second core, in a session of its own."""
    core = sorted(os.sched_getaffinity(0))[1]
    spin = subprocess.Popen(["taskset", "-c", str(core), sys.executable, str(JOB.parent / "spin.py"), "1"], start_new_session=True)
    try:
        yield {}
    finally:
        spin.kill()
        spin.wait()


def command(engine: str, flatout: str, cause: str, ranks: int, steps: int) -> list[str]:
    if engine == "cpp":
        train = f'"{flatout}" train --quiet --steps {steps}'
        return [*MPIRUN, str(ranks), "sh", "-c", f'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec {train} --inject {cause}; else exec {train}; fi']
    # More ranks on the same cores have longer steps, which the same cause would hide behind.
    times = max(1, ranks // len(os.sched_getaffinity(0)))
    job = [sys.executable, str(JOB), "--engine", engine, "--cause", cause, "--ranks", str(ranks), "--steps", str(steps), "--times", str(times)]
    return job if engine == "gloo" else [*MPIRUN, str(ranks), *job]


def per_rank(engine: str, flatout: str, ranks: int, steps: int) -> list[str]:
    job = ["sh", "in_its_group.sh", flatout, "run", "--out", "run", "--", sys.executable, str(JOB), "--engine", engine, "--steps", str(steps)]
    if engine == "mpi":
        return [*MPIRUN, str(ranks), *job]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "--no-python", *job]


def once(engine: str, flatout: str, cause: str, ranks: int, steps: int) -> dict:
    """What one run found."""
    around = {"quota": quota, "neighbour": neighbour}.get(cause, contextlib.nullcontext)
    with tempfile.TemporaryDirectory() as folder, around() as more:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        words = [flatout, "run", "--out", f"{folder}/run", "--", *command(engine, flatout, cause, ranks, steps)]
        if cause == "quota":
            Path(folder, "in_its_group.sh").write_text(IN_ITS_GROUP)  # torchrun takes $$ in words for $
            words = per_rank(engine, flatout, ranks, steps)
        subprocess.run(words, env={**environment, **(more or {})}, cwd=folder, capture_output=True, check=True, timeout=600)
        first = Path(folder, "run", "rank-0") if cause == "quota" else Path(folder, "run")
        return json.loads((first / "findings.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5, help="of each cause")
    parser.add_argument("--balanced", type=int, default=20, help="runs without a cause")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--engines", nargs="*", choices=("gloo", "mpi", "cpp"), default=["gloo", "mpi", "cpp"])
    parser.add_argument("--causes", nargs="*", choices=EXPECTED, default=list(EXPECTED))
    opts = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("the ranks need two cores: each cause is one rank's alone")
    flatout = os.environ.get("FLATOUT_BIN", str(ROOT / "build" / "release" / "flatout"))
    rows = []
    for engine, cause in itertools.product(opts.engines, opts.causes):
        if cause != "none" and (cause in INJECTED) != (engine == "cpp"):
            continue
        lack = groups.lacks("cgroup1:cpu") if cause == "quota" else groups.lacks("tool:taskset") if cause == "neighbour" else None
        lack = lack or (groups.lacks("tool:mpirun") if engine != "gloo" else None)
        if lack:
            print(f"{engine} {cause}: skipped, lacks {lack}")
            continue
        row = {"engine": engine, "cause": cause, "ranks": opts.ranks, "runs": opts.balanced if cause == "none" else opts.runs, "rank_named": 0, "cause_named": 0, "other_named": 0, "said": {}}
        for _ in range(row["runs"]):
            found = once(engine, flatout, cause, opts.ranks, opts.steps)
            late = [r for r in found["ranks"] if r["late"]]
            row["rank_named"] += [r["rank"] for r in late] == [1]
            row["other_named"] += any(r["rank"] != 1 for r in late)
            row["cause_named"] += any(r["rank"] == 1 and r["cause"] in EXPECTED[cause] for r in late)
            said = ",".join(f"{r['rank']}:{r['cause'] or '-'}" for r in late) or "none"
            row["said"][said] = row["said"].get(said, 0) + 1
        row["said"] = " ".join(f"{k} x{v}" for k, v in sorted(row["said"].items()))
        rows.append(row)
        print(row, flush=True)
    with open(RESULTS, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

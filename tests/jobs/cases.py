"""The manifest of tests/jobs: which cause each job has, what it needs, and what its removal gained.

`CASES` is read by tests/e2e/test_jobs.py, by tests/jobs/verify.py (which measures the gains without
Flatout) and by bench/whatif. A job's file names its line to blame with the comment `# CAUSE`; with
several marked lines any of them is right. Nothing in a job says which finding it stands for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, FrozenSet, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
GAINS = HERE / "gains.json"  # written by verify.py: name -> measured factor in steps per second

Words = Tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One run of one job and what the doctor has to say about it."""

    name: str
    script: str
    expect: str  # finding id, or "healthy"
    args: Words = ()
    expect_any: FrozenSet[str] = frozenset()  # two causes: both must be found, either may be first
    also_right: FrozenSet[str] = frozenset()  # other verdicts that a person would accept as exact
    needs: Words = ()  # see groups.lacks
    limits: Dict[str, Dict[str, str]] = field(default_factory=dict)  # cgroup v1 controller -> file -> content
    fixed_limits: Optional[Dict[str, Dict[str, str]]] = None  # the limits of --fixed; None: no limits at all
    env: Dict[str, str] = field(default_factory=dict)
    fixed_env: Optional[Dict[str, str]] = None  # the environment of --fixed, where it differs
    before: Words = ()  # words before the interpreter: taskset, unshare
    fixed_before: Optional[Words] = None
    neighbours: Tuple[Words, ...] = ()  # programs started in sessions of their own, outside the job
    neighbour_delay_s: float = 0.0  # they start this long after the job
    neighbours_when_fixed: bool = False
    slow_stdout_bytes_per_s: int = 0  # the job's output is read this slowly; --fixed: at once
    end_after_s: float = 0.0  # SIGTERM to flatout after this time, for jobs that hang
    exit_code: Optional[int] = 0  # what the job returns; None: anything
    blames: bool = True  # `where` has to be a marked line; False where no line is to blame
    step_cost: bool = True  # has a gain to predict (bench/whatif)
    changes_at: Optional[int] = None  # the step at which the speed changes inside the run
    why: str = ""

    @property
    def path(self) -> Path:
        return HERE / self.script

    @property
    def measured_gain(self) -> Optional[float]:
        """Steps per second without the cause over those with it, from verify.py; None: not measured."""
        if not GAINS.exists():
            return None
        return json.loads(GAINS.read_text()).get(self.name, {}).get("gain")

    @property
    def healthy(self) -> bool:
        return self.expect == "healthy"

    def cause_lines(self) -> List[Tuple[str, int]]:
        """(file name, line) of all lines marked in the script and in its helper package."""
        files = [self.path]
        text = self.path.read_text()
        for folder in HERE.iterdir():
            if folder.is_dir() and (f"from {folder.name}" in text or f"import {folder.name}" in text):
                files += sorted(folder.glob("*.py"))
        found = []
        for file in files:
            for number, line in enumerate(file.read_text().splitlines(), start=1):
                if line.rstrip().endswith("# CAUSE"):
                    found.append((file.name, number))
        return found


def healthy(name: str, script: str, *args: str, **more) -> Case:
    return Case(name, script, "healthy", args=args, blames=False, step_cost=False, **more)


INPUT = [
    Case("decode_two_workers", "pets_classifier.py", "input.decode_cpu"),
    Case("augment_numpy", "segment.py", "input.decode_cpu"),
    Case("decode_feeder_threads", "feeder_pool.py", "input.decode_cpu",
         why="threads, but decoding releases the interpreter lock: not input.gil"),
    Case("serial_loading", "digits_serial.py", "input.too_few_workers", needs=("cores:2",)),
    Case("slow_store", "object_store.py", "input.too_few_workers", needs=("cores:2",)),
    Case("cold_volumes", "volumes.py", "input.disk"),
    Case("capped_reads", "satellite_tiles.py", "input.disk_throttled", needs=("root", "cgroup1:blkio"),
         limits={"blkio": {"blkio.throttle.read_bps_device": "DISK 40000000"}}),
    Case("cache_too_small", "genome_windows.py", "input.cold_cache", args=("--seconds", "9"),
         needs=("root", "cgroup1:memory"), limits={"memory": {"memory.limit_in_bytes": "600M"}}),
    Case("cache_given_away", "polite_reader.py", "input.cold_cache"),
    Case("many_tiny_files", "clips.py", "input.small_files"),
    Case("tiny_files_cold", "icons.py", "input.small_files"),
    Case("archive_scanned", "tarred_speech.py", "input.random_seek"),
    Case("random_rows", "embeddings_lookup.py", "input.random_seek"),
    Case("collate_loops", "translate.py", "input.collate"),
    Case("pickled_batches", "events_stream.py", "input.collate"),
    Case("heavy_samples", "molecules.py", "input.worker_skew", needs=("cores:2",)),
    Case("workers_anew", "few_shot.py", "input.worker_restart"),
    Case("python_feeders", "tokens_threads.py", "input.gil", needs=("cores:2",)),
]

CPU = [
    Case("sixteen_threads", "wide_mlp.py", "cpu.oversubscribed"),
    Case("time_loop", "seq_steps.py", "cpu.python_bound"),
]

STALL = [
    Case("slow_saves", "vae_saves.py", "stall.checkpoint"),
]

HEALTHY = [
    healthy("healthy_cnn_serial", "healthy_cnn.py"),
    healthy("healthy_cnn_workers", "healthy_cnn.py", "--workers", "2"),
    healthy("healthy_mlp", "healthy_mlp.py"),
    healthy("healthy_transformer", "healthy_transformer.py"),
    healthy("healthy_gan", "healthy_gan.py"),
    healthy("healthy_accumulate", "healthy_accumulate.py"),
    healthy("healthy_trainer", "healthy_trainer.py"),
    healthy("healthy_thread", "healthy_thread.py"),
]

CASES: List[Case] = INPUT + CPU + STALL + HEALTHY

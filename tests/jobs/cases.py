"""The manifest of tests/jobs: which cause each job has, what it needs, and what its removal gained.

`CASES` is read by tests/e2e/test_jobs.py, by tests/jobs/verify.py (which measures the gains without
Flatout) and by bench/whatif. A job's file names its line to blame with the comment `# CAUSE`; with
several marked lines any of them is right. Nothing in a job says which finding it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, FrozenSet, List, Optional, Tuple

HERE = Path(__file__).resolve().parent

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
    Case("unpacks_again", "zipped_digits.py", "input.decode_cpu"),
    Case("drawn_one_by_one", "weighted_draws.py", "input.decode_cpu", needs=("cores:2",)),
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
    Case("folder_searched", "vehicle_tracks.py", "input.small_files"),
    Case("archive_scanned", "tarred_speech.py", "input.random_seek"),
    Case("random_rows", "embeddings_lookup.py", "input.random_seek"),
    Case("lines_counted", "reviews_by_line.py", "input.random_seek"),
    Case("collate_loops", "translate.py", "input.collate"),
    Case("pickled_batches", "events_stream.py", "input.collate"),
    Case("pool_pickles", "ocean_pool.py", "input.collate", needs=("cores:2",)),
    Case("heavy_samples", "molecules.py", "input.worker_skew", needs=("cores:2",)),
    Case("long_ones_in_turns", "speech_by_length.py", "input.worker_skew", needs=("cores:2",)),
    Case("windows_in_the_loop", "river_gauges.py", "input.decode_cpu", also_right=frozenset({"input.too_few_workers"})),
    Case("workers_anew", "few_shot.py", "input.worker_restart"),
    Case("executor_anew", "protein_maps.py", "input.worker_restart"),
    Case("loader_per_episode", "alphabets.py", "input.worker_restart"),
    Case("python_feeders", "tokens_threads.py", "input.gil", needs=("cores:2",)),
    Case("padded_to_the_most", "news_topics.py", "input.padding"),
    Case("decoder_lock", "lidar_scans.py", "input.lock", needs=("cores:2",)),
]

CPU = [
    Case("neighbour", "conv_audio.py", "cpu.noisy_neighbour", blames=False,
         neighbours=(("PYTHON", "spin.py", "1"),) * 4,
         why="each in a session of its own: one session's programs share what one gets"),
    Case("neighbour_two_threads", "conv_audio.py", "cpu.noisy_neighbour", blames=False,
         args=("--threads", "2", "--workers", "0"), neighbours=(("PYTHON", "spin.py", "2"), ("PYTHON", "spin.py", "1"))),
    Case("sixteen_threads", "wide_mlp.py", "cpu.oversubscribed"),
    Case("threads_in_workers", "features_workers.py", "cpu.oversubscribed"),
    Case("half_a_core", "conv_audio.py", "cpu.throttled", blames=False, needs=("root", "cgroup1:cpu"),
         limits={"cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}}),
    Case("pinned_by_script", "pinned_regressor.py", "cpu.affinity", needs=("cores:2",)),
    Case("pinned_from_outside", "conv_audio.py", "cpu.affinity", blames=False, needs=("cores:2", "tool:taskset"),
         args=("--threads", "2", "--workers", "0"), before=("taskset", "-c", "0"), fixed_before=()),
    Case("time_loop", "seq_steps.py", "cpu.python_bound"),
    Case("game_by_game", "rl_rollouts.py", "cpu.python_bound"),
    Case("game_between_updates", "game_rollouts.py", "cpu.python_bound"),
    Case("atom_by_atom", "atom_messages.py", "cpu.python_bound"),
    Case("arrays_as_they_come", "asset_returns.py", "cpu.float64"),
    Case("autocast_of_a_gpu", "reef_autocast.py", "cpu.half_precision"),
    Case("momentum_fades", "resting_rows.py", "cpu.denormals", args=("--seconds", "10")),
    Case("all_priorities", "draws_by_priority.py", "cpu.growing_work", step_cost=False, args=("--seconds", "10")),
    Case("state_not_detached", "long_documents.py", "cpu.retained_graph"),
    Case("collect_each_step", "knowledge_graph.py", "cpu.gc"),
    Case("eager_collector", "parse_corpus.py", "cpu.gc"),
    Case("program_per_sample", "metadata_probe.py", "cpu.process_churn"),
    Case("pool_per_step", "simulate_batches.py", "cpu.process_churn"),
    Case("unreaped_children", "uploader.py", "cpu.zombies", step_cost=False, needs=("root", "cgroup1:pids"),
         args=("--children", "120"), limits={"pids": {"pids.max": "140"}}),
]

MEMORY = [
    Case("kept_graphs", "tagger_history.py", "mem.leak", step_cost=False),
    Case("worker_remembers", "frames_cache.py", "mem.leak", step_cost=False),
    Case("table_in_limit", "memory_map_table.py", "mem.pressure", needs=("root", "cgroup1:memory"),
         limits={"memory": {"memory.limit_in_bytes": "500M"}}),
    Case("fresh_matrix", "distance_matrix.py", "mem.page_faults"),
    Case("numpy_temporaries", "scratch_numpy.py", "mem.page_faults"),
    Case("one_arena", "log_patterns.py", "mem.allocator", fixed_env={}, env={"MALLOC_ARENA_MAX": "1"}),
    Case("files_left_open", "open_annotations.py", "mem.fds", step_cost=False, args=("--limit", "512", "--every", "12", "--steps", "345")),
    Case("files_run_out", "open_annotations.py", "mem.fds", step_cost=False, args=("--limit", "160", "--every", "4"),
         exit_code=1, also_right=frozenset({"crash.exception"})),
    Case("killed_main", "episodes_buffer.py", "mem.killed", step_cost=False, needs=("root", "cgroup1:memory"),
         limits={"memory": {"memory.limit_in_bytes": "900M"}}, exit_code=137),
    Case("killed_worker", "episodes_buffer.py", "mem.killed", step_cost=False, needs=("root", "cgroup1:memory"),
         args=("--workers", "1"), limits={"memory": {"memory.limit_in_bytes": "900M"}}, exit_code=None),
    Case("small_shm", "stereo_pairs.py", "mem.shm", step_cost=False, blames=False, exit_code=1,
         needs=("root", "mountns"), fixed_before=(),
         before=("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh")),
]

STALL = [
    Case("slow_saves", "vae_saves.py", "stall.checkpoint"),
    Case("saves_under_lock", "snapshot_thread.py", "stall.checkpoint"),
    Case("saves_as_text", "word_vectors.py", "stall.checkpoint"),
    Case("slow_terminal", "chatty.py", "stall.logging", slow_stdout_bytes_per_s=400_000),
    Case("synced_log", "audit_log.py", "stall.logging"),
    Case("metric_each_step", "churn_metrics.py", "stall.logging"),
    Case("scored_each_step", "road_graph.py", "stall.logging"),
    Case("polls_for_turn", "lock_step.py", "stall.idle_wait"),
    Case("polls_for_rollout", "policy_updates.py", "stall.idle_wait"),
    Case("rate_limit", "license_server.py", "stall.idle_wait"),
    Case("nobody_notified", "grid_actor.py", "stall.idle_wait"),
    Case("server_asked", "quotes_client.py", "stall.idle_wait"),
    Case("queue_full", "metrics_thread.py", "stall.hang", step_cost=False, args=("--seconds", "16")),
    Case("never_reports", "barrier.py", "stall.hang", step_cost=False, args=("--seconds", "30"), end_after_s=16,
         exit_code=None),
    Case("index_anew", "curriculum_index.py", "stall.periodic"),
]

CRASH = [
    Case("raises", "labels_bug.py", "crash.exception", step_cost=False, exit_code=1),
    Case("worker_raises", "labels_bug.py", "crash.exception", step_cost=False, args=("--workers", "2"), exit_code=1),
    Case("segfault", "native_ext.py", "crash.signal", step_cost=False, exit_code=139),
    Case("abort", "native_ext.py", "crash.signal", step_cost=False, args=("--how", "abort"), exit_code=134),
    Case("killed", "native_ext.py", "crash.signal", step_cost=False, blames=False, args=("--how", "killed"),
         exit_code=137),
    Case("worker_segfault", "native_ext.py", "crash.signal", step_cost=False, blames=False, args=("--in-worker",),
         exit_code=1),
]

TWO = [
    Case("filters_and_saves", "captions.py", "input.decode_cpu",
         expect_any=frozenset({"input.decode_cpu", "stall.checkpoint"})),
    Case("tiny_ops_and_log", "relations.py", "cpu.python_bound",
         expect_any=frozenset({"cpu.python_bound", "stall.logging"})),
    Case("collector_and_pause", "tabular_mix.py", "stall.idle_wait",
         expect_any=frozenset({"stall.idle_wait", "cpu.gc"})),
]

CHANGES = [
    Case("larger_from_100", "growing_pictures.py", "input.decode_cpu", step_cost=False, changes_at=100,
         args=("--steps", "220")),
    Case("verifiers_from_300", "denoise_teacher.py", "cpu.oversubscribed", step_cost=False, changes_at=300,
         needs=("cores:2",), args=("--seconds", "13")),
    Case("neighbour_comes", "conv_audio.py", "cpu.noisy_neighbour", blames=False, step_cost=False,
         args=("--seconds", "12"), neighbours=(("PYTHON", "spin.py", "1"),) * 4, neighbour_delay_s=8),
]

ELSEWHERE = [  # cannot be run here without what they need; the skip says so
    Case("feed_dict", "feed_dict.py", "input.feed_dict", needs=("module:tensorflow",)),
    Case("pageable_copies", "pageable_copies.py", "input.h2d_sync", needs=("gpu",)),
]

LOOKALIKES = [
    healthy(f"looks_{habit}", "lookalike.py", habit, why=why)
    for habit, why in [
        ("sleepers", "threads that sleep are not busy: not cpu.oversubscribed"),
        ("large", "big but steady: not mem.leak"),
        ("firstepoch", "a cache that fills once: not mem.leak"),
        ("smallsaves", "saves that cost nothing: not stall.checkpoint"),
        ("raregc", "not cpu.gc"),
        ("onepool", "a pool made once: not cpu.process_churn"),
        ("talk", "prints that nobody holds up: not stall.logging"),
        ("latestart", "waits before the first step only: not stall.idle_wait"),
        ("fewleft", "a dozen unreaped children, no limit near: not cpu.zombies"),
        ("openfiles", "far from the limit: not mem.fds"),
        ("validation", "a phase, not stall.periodic"),
        ("warmfiles", "reads, but from memory: not input.disk"),
        ("longepochs", "workers start anew at no cost: not input.worker_restart"),
        ("threads", "a monitor thread that polls beside the training: not stall.idle_wait"),
        ("buffers", "small buffers are kept by the allocator: not mem.page_faults"),
        ("coldahead", "reads from the disk that nobody waits for: not input.cold_cache, not input.disk"),
        ("tinyfiles", "a file for each sample, ahead of the step: not input.small_files"),
        ("seeks", "jumps about a file that is in memory: not input.random_seek"),
        ("owncollate", "a slow collate function that the step does not wait for: not input.collate"),
        ("unevensamples", "the queue evens it out: not input.worker_skew"),
        ("sharedcounter", "a lock that is held for a moment: not input.lock"),
        ("pythonthread", "a Python thread that seldom runs: not input.gil"),
        ("doubledata", "data in float64, a model in float32: not cpu.float64"),
        ("halfweights", "weights kept in half precision, a model in float32: not cpu.half_precision"),
        ("pythonloop", "a fiftieth of the step: not cpu.python_bound"),
        ("allocatingthreads", "nobody waits for the allocator: not mem.allocator"),
        ("sharedbatches", "far from the limit of /dev/shm: not mem.shm"),
        ("longphase", "it computes: not stall.hang"),
    ]
] + [
    healthy("looks_retained", "long_documents.py", "--detached",
            why="graphs are kept, but none leads to another: not cpu.retained_graph"),
    healthy("looks_pinned", "lookalike.py", "threads", "--pin", "0", needs=("cores:2",),
            why="one busy thread loses nothing on one core: not cpu.affinity"),
    healthy("looks_limited", "conv_audio.py", needs=("root", "cgroup1:cpu", "cgroup1:memory"),
            limits={"cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "400000"},
                    "memory": {"memory.limit_in_bytes": "4G"}},
            why="limits that are never reached: not cpu.throttled, not mem.pressure"),
    Case("looks_throttled", "volumes.py", "input.disk", needs=("root", "cgroup1:blkio"),
         limits={"blkio": {"blkio.throttle.read_bps_device": "DISK 8000000000"}},
         why="a cap far above what the disk gives: not input.disk_throttled"),
]

HEALTHY = [
    healthy("healthy_cnn_serial", "healthy_cnn.py"),
    healthy("healthy_cnn_workers", "healthy_cnn.py", "--workers", "2", "--batch", "64"),
    healthy("healthy_mlp", "healthy_mlp.py"),
    healthy("healthy_transformer", "healthy_transformer.py"),
    healthy("healthy_gan", "healthy_gan.py"),
    healthy("healthy_accumulate", "healthy_accumulate.py"),
    healthy("healthy_trainer", "healthy_trainer.py"),
    healthy("healthy_thread", "healthy_thread.py"),
    healthy("healthy_evolution", "evolution.py"),
    healthy("healthy_beside_neighbour", "healthy_mlp.py", neighbours=(("PYTHON", "spin.py", "1", "19"),),
            needs=("cores:2",)),
]

CASES: List[Case] = (
    INPUT + CPU + MEMORY + STALL + CRASH + TWO + CHANGES + ELSEWHERE + LOOKALIKES + HEALTHY)

assert len({c.name for c in CASES}) == len(CASES)

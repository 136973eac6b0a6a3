"""Traces that are built event by event, and what flatout says of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def run(flatout: str, *words: str, code: int = 0) -> str:
    done = subprocess.run([flatout, "trace", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def summary(flatout: str, *files: Path) -> dict:
    return json.loads(run(flatout, "summary", "--json", *files))


class Job:
    """A training thread, its launches and a device, as PyTorch's profiler would have seen them; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.now = 0.0
        self.streams: dict[int, float] = {}
        self.correlation = 0

    def slice(self, category: str, name: str, begin: float, end: float, pid: int = 1, tid: int = 1, **args) -> None:
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(begin, 3),
                            "dur": round(end - begin, 3), "args": args})

    def host(self, microseconds: float, name: str = "", category: str = "cpu_op") -> None:
        if name:
            self.slice(category, name, self.now, self.now + microseconds)
        self.now += microseconds

    def launch(self, name: str, length: float, stream: int = 7, host: float = 5, category: str = "kernel", after: float = 0, **args) -> float:
        self.correlation += 1
        call = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
        self.slice("cuda_runtime", call, self.now, self.now + host, correlation=self.correlation)
        begin = max(self.now + 8, self.streams.get(stream, 0) + 1, after)
        self.streams[stream] = begin + length
        self.slice(category, name, begin, begin + length, pid=0, tid=stream, device=0, stream=stream, correlation=self.correlation, **args)
        self.now += host
        return begin + length

    def wait(self) -> None:
        end = max([self.now, *self.streams.values()]) + 2
        self.slice("cuda_runtime", "cudaDeviceSynchronize", self.now, end)
        self.now = end

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path


def steps_of(path: Path, step, count: int = 12) -> Path:
    """`step(job)` so many times, each in a ProfilerStep."""
    job = Job()
    for k in range(count):
        begin = job.now
        step(job)
        job.slice("user_annotation", f"ProfilerStep#{k}", begin, job.now)
    return job.write(path)


def fine(job: Job) -> None:
    for _ in range(20):
        job.host(10, "aten::mm")
        job.launch("gemm", 200)
    job.wait()

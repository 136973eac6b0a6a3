"""What the jobs of this folder share: options, a clock over steps, generated data.

Nothing here knows of Flatout, and nothing here is slow: a job's cause lives in the job's own file or
in a helper module beside it. Data sets are made once per machine, in the temporary folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, List, Optional

WARMUP_STEPS = 8


def options(extra: Optional[Callable[[argparse.ArgumentParser], None]] = None) -> argparse.Namespace:
    """The options every job takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="run without the cause")
    parser.add_argument("--times", type=Path, help="write the step times to this JSON file")
    parser.add_argument("--seconds", type=float, default=6.0, help="train for about this long")
    parser.add_argument("--steps", type=int, default=0, help="train for this many steps instead")
    if extra:
        extra(parser)
    opts = parser.parse_args()
    # A job that is told to end still says how fast it was.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return opts


class Meter:
    """Step times without any tool: call step() at the end of each; it is true when time is up."""

    def __init__(self, opts: argparse.Namespace) -> None:
        self._path = opts.times
        self._seconds = opts.seconds
        self._limit = opts.steps
        self._ends: List[float] = []
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._begin = time.perf_counter()
        self.over = False

    def step(self) -> bool:
        now = time.perf_counter()
        if not self._ends:
            self._begin = now  # the first step loads half of PyTorch
        self._ends.append(now)
        if self._limit:
            self.over = len(self._ends) >= self._limit
        else:
            self.over = now - self._begin > self._seconds
        return self.over

    def write(self) -> None:
        """Median and mean step, warm-up left out. The mean is what steps per second mean."""
        ends = self._ends[min(WARMUP_STEPS, len(self._ends) // 3):]
        steps = sorted(b - a for a, b in zip(ends, ends[1:]))
        if not steps:
            return
        result = {
            "steps": len(self._ends),
            "median_s": steps[len(steps) // 2],
            "mean_s": (ends[-1] - ends[0]) / len(steps),
            "cpu_s": sum(os.times()[:4]),
            "minor_faults_per_step": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults) / len(self._ends),
        }
        if self._path:
            self._path.write_text(json.dumps(result) + "\n")
        print(f"{len(self._ends)} steps, {1000 * result['mean_s']:.2f} ms each")


def data_dir(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of a generated data set; make(folder) fills it, once. Another content needs another name."""
    key = hashlib.sha256(f"{name}-{os.getuid()}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"flatout-jobs-{key}" / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    make(fresh)
    try:
        fresh.rename(folder)
    except OSError:  # somebody else was faster
        shutil.rmtree(fresh)
    return folder


def photos(count: int, width: int, height: int, quality: int = 92) -> Path:
    """JPEG files with smooth shapes and some noise, so that they cost what photographs cost."""

    def make(folder: Path) -> None:
        import numpy as np
        from PIL import Image

        rng = np.random.default_rng(7)
        for i in range(count):
            small = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
            big = np.asarray(Image.fromarray(small).resize((width, height), Image.BICUBIC), np.int16)
            big = big + rng.integers(-12, 12, (height, width, 1), dtype=np.int16)
            Image.fromarray(big.clip(0, 255).astype(np.uint8)).save(
                folder / f"img_{i:05d}.jpg", quality=quality)

    return data_dir(f"photos-{count}-{width}x{height}-{quality}", make)


def blobs(name: str, count: int, size: int) -> Path:
    """`count` files of `size` random bytes each: written, not holes."""

    def make(folder: Path) -> None:
        chunk = os.urandom(1 << 20)
        for i in range(count):
            with open(folder / f"part_{i:05d}.bin", "wb", buffering=0) as file:
                left = size
                while left > 0:
                    left -= file.write(chunk[: min(left, len(chunk))])
        os.sync()

    return data_dir(f"{name}-{count}x{size}", make)


def forget(path: Path) -> None:
    """Lets the page cache go of a (long written) file, or all files below a folder. Needs no rights."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm(path: Path) -> None:
    """Reads a file, or all files below a folder, into the page cache."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.read(1 << 22):
                pass

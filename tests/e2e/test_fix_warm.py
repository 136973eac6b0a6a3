"""The remedy `warm_cache`: files that the job reads are in the page cache before their turn, where they fit."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from remedied import INJECT, changed

pytestmark = pytest.mark.e2e

MIB = 1 << 20

# Opens two files of a folder, and waits until all of it is in memory, or for a while.
JOB = """
    import json, os, time

    def cached(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            for at in range(0, os.fstat(fd).st_size, 1 << 16):
                os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(fd)

    def read():
        for name in ("a.bin", "b.bin"):
            open(os.path.join("data", name), "rb").read(10)

    read()
    until = time.monotonic() + {patience}
    names = sorted(os.listdir("data"))
    while time.monotonic() < until and not all(cached("data/" + n) for n in names if n.endswith(".bin")):
        time.sleep(0.02)
    print(json.dumps({{n: cached("data/" + n) for n in names}}))
"""


def fill(folder: Path) -> None:
    """Files that are on the disk and not in memory."""
    folder.mkdir()
    for name in ("a.bin", "b.bin", "c.bin", "d.bin", "other.idx"):
        (folder / name).write_bytes(os.urandom(2 * MIB))
        fd = os.open(folder / name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def is_cold(path: Path) -> bool:
    """Whether the middle of a file is not in memory; skips where this file system cannot tell."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], MIB, os.RWF_NOWAIT)
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        pytest.skip(f"lacks a file system that tells what is cached ({error.strerror})")
    finally:
        os.close(fd)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data")
    if not is_cold(tmp_path / "data" / "c.bin"):
        pytest.skip("lacks a disk below the temporary folder")
    return tmp_path / "data"


def test_the_files_of_the_jobs_folder_are_read_ahead(job_python: str, data: Path) -> None:
    out, applied = changed(job_python, "warm_cache", JOB.format(patience=60), data.parent)
    cached = json.loads(out)
    assert all(cached[name] for name in ("a.bin", "b.bin", "c.bin", "d.bin")), cached
    assert not cached["other.idx"]  # nobody opened one of those
    assert applied == {"warm_cache"}
    assert (data.parent / "warmed").read_text().splitlines() == [str(data)]
    opened = (data.parent / "opened").read_text().splitlines()
    assert str(data / "a.bin") in opened and str(data / "d.bin") in opened


def test_without_it_they_are_not(job_python: str, data: Path) -> None:
    out, applied = changed(job_python, "", JOB.format(patience=0), data.parent)
    cached = json.loads(out)
    assert not cached["c.bin"] and not cached["d.bin"] and applied == set()


def test_workers_of_a_loader_read_them_once(job_python: str, data: Path) -> None:
    pytest.importorskip("torch")
    script = """
        import os, torch
        from torch.utils.data import DataLoader

        class Files:
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return open(os.path.join("data", "abcd"[i] + ".bin"), "rb").read()[0]

        print(len(list(DataLoader(Files(), batch_size=2, num_workers=2))))
    """
    out, _ = changed(job_python, "warm_cache", script, data.parent)
    assert out.strip() == "2"
    warmed = data.parent / "warmed"
    assert not warmed.exists() or warmed.read_text().splitlines() == [str(data)]  # short jobs may be over before


def warm_module():
    """The remedy's own module, in this process."""
    spec = importlib.util.spec_from_file_location("warm", INJECT.parent / "remedies" / "warm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_room_is_what_memory_and_every_group_leave(tmp_path: Path) -> None:
    warm = warm_module()

    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 524288 kB\nHugePages_Total: 0\n")
    put("proc/self/cgroup", "0::/jobs/mine\n")
    assert warm.room(str(tmp_path)) == (512 - 64) * MIB
    put("sys/fs/cgroup/jobs/memory.current", f"{100 * MIB}\n")
    put("sys/fs/cgroup/jobs/memory.max", f"{300 * MIB}\n")
    put("sys/fs/cgroup/jobs/memory.high", "max\n")
    assert warm.room(str(tmp_path)) == 200 * MIB
    put("sys/fs/cgroup/jobs/mine/memory.current", f"{90 * MIB}\n")
    put("sys/fs/cgroup/jobs/mine/memory.max", "max\n")
    put("sys/fs/cgroup/jobs/mine/memory.high", f"{120 * MIB}\n")
    assert warm.room(str(tmp_path)) == 30 * MIB
    put("proc/self/cgroup", "9:memory:/old\n0::/\n")
    put("sys/fs/cgroup/memory/old/memory.usage_in_bytes", f"{10 * MIB}\n")
    put("sys/fs/cgroup/memory/old/memory.limit_in_bytes", f"{17 * MIB}\n")
    assert warm.room(str(tmp_path)) == 7 * MIB


def test_what_does_not_fit_is_not_read(job_python: str, data: Path) -> None:
    """8 MiB of files, and room for 7."""
    script = f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location("warm", {str(INJECT.parent / "remedies" / "warm.py")!r})
        warm = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(warm)
        for room in (7 << 20, 8 << 20):
            done = []
            warmer = warm.Warmer(done.append, lambda: room)
            warmer._warm(warm._files("data", ".bin"), "data", ".bin")
            print(len(done) > 0)
    """
    assert changed(job_python, "", script, data.parent)[0].split() == ["False", "True"]

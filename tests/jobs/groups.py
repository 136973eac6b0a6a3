"""Control groups (v1) for jobs that need a limit: made before a run, removed after it.

`with limits({"cpu": {"cpu.cfs_quota_us": "50000"}}) as prefix:` gives the words to put before a command so
that it enters the groups and becomes the job by exec: no process stays between. Also the checks of
what a machine lacks for a case.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional

ROOT = Path("/sys/fs/cgroup")
Limits = Dict[str, Dict[str, str]]  # controller -> file -> content


def root_disk() -> str:
    """MAJ:MIN of the disk below the temporary folder, whole disk where it is a partition."""
    device = os.stat(tempfile.gettempdir()).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path(f"/sys/dev/block/{number}")
    if (block / "partition").exists():
        return (block.resolve().parent / "dev").read_text().strip()
    return number if block.exists() else ""


def lacks(need: str) -> Optional[str]:
    """What this machine lacks for a need of a case, or None."""
    if need == "root":
        return None if os.geteuid() == 0 else "root"
    if need.startswith("cgroup1:"):
        controller = need.split(":")[1]
        folder = ROOT / controller
        if not (folder / "cgroup.procs").exists() or not os.access(folder, os.W_OK):
            return f"a writable cgroup v1 controller '{controller}'"
        probe = folder / f"jobs-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"a writable cgroup v1 controller '{controller}' ({error.strerror})"
        if controller == "blkio" and not root_disk():
            return "a temporary folder on a block device"
        return None
    if need == "swap":
        with open("/proc/swaps") as swaps:
            if len(swaps.readlines()) > 1:
                return None
        return "swap space (the harness makes none)"
    if need == "mountns":
        done = subprocess.run(["unshare", "-m", "true"], capture_output=True)
        return None if done.returncode == 0 else "the right to make a mount namespace"
    if need.startswith("module:"):
        import importlib.util

        name = need.split(":")[1]
        return None if importlib.util.find_spec(name) else f"the Python package {name}"
    if need == "gpu":
        return None if os.path.exists("/dev/nvidia0") else "a GPU"
    if need.startswith("cores:"):
        cores = len(os.sched_getaffinity(0))
        return None if cores >= int(need.split(":")[1]) else f"{need.split(':')[1]} cores"
    if need.startswith("tool:"):
        tool = need.split(":")[1]
        return None if shutil.which(tool) else f"the program {tool}"
    raise ValueError(need)


def _remove(folder: Path) -> None:
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # busy: what is left in it belongs to the run that has ended
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
            time.sleep(0.05)


@contextlib.contextmanager
def limits(wanted: Limits) -> Iterator[List[str]]:
    """Makes one group per controller; gives the command prefix that enters them all."""
    made: List[Path] = []
    try:
        for controller, files in wanted.items():
            folder = ROOT / controller / f"job-{os.getpid()}-{len(made)}"
            folder.mkdir()
            made.append(folder)
            for name, content in files.items():
                (folder / name).write_text(content.replace("DISK", root_disk()))
        entries = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in made)
        yield ["sh", "-c", f'{entries}; exec "$@"', "sh"] if made else []
    finally:
        for folder in made:
            _remove(folder)


if __name__ == "__main__":  # groups.py blkio blkio.throttle.read_bps_device="DISK 1000000" -- command
    cut = sys.argv.index("--")
    chosen: Limits = {}
    current = ""
    for word in sys.argv[1:cut]:
        if "=" in word:
            chosen[current][word.split("=", 1)[0]] = word.split("=", 1)[1]
        else:
            current = word
            chosen[current] = {}
    with limits(chosen) as before:
        sys.exit(subprocess.call(before + sys.argv[cut + 1:]))

"""A container that allows little: an ordinary user without privileges, no ptrace, no pressure files, /sys read-only.

As root the test takes the rights away itself, in a mount namespace of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

JOBS = Path(__file__).resolve().parents[1] / "jobs"
NOBODY = 65534
# What a container runtime's seccomp profile does to ptrace(2) and process_vm_readv(2), on x86-64 and AArch64.
NO_PTRACE = """
import ctypes, os, platform, sys
calls = {"x86_64": (101, 310), "aarch64": (117, 270)}[platform.machine()]
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]
rules = [(0x20, 0, 0, 0), (0x15, 1, 0, calls[0]), (0x15, 0, 1, calls[1]), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filter = (Instruction * len(rules))(*(Instruction(*rule) for rule in rules))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), filter))) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def confined(tmp_path, flatout, job_python):
    """The words before a command that take the rights away. Where the interpreter is root's alone, the user stays
    root and loses its capabilities only."""
    if os.geteuid() != 0:
        pytest.skip("lacks root: the test takes rights away itself")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for parent in home.parents:  # pytest's folders are its user's alone
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)
    said = ""
    for who in (f"--reuid={NOBODY} --regid={NOBODY} --clear-groups", ""):
        script = ("if [ -d /proc/pressure ]; then mount -t tmpfs -o mode=000 tmpfs /proc/pressure; fi; "
                  f'mount -o remount,bind,ro /sys; exec setpriv {who} --no-new-privs --inh-caps=-all --bounding-set=-all "$@"')
        words = ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", NO_PTRACE]
        if not who:
            os.chown(home, 0, 0)
        tried = subprocess.run([*words, flatout, "run", "--quiet", "--out", "tried", "--", job_python, "-c", ""],
                               capture_output=True, text=True, cwd=home)
        if tried.returncode == 0:
            return words, home
        said = tried.stderr
    pytest.skip(f"lacks namespaces or setpriv: {said[-300:]}")


def test_the_cause_is_found_and_what_was_missed_is_said(confined, flatout, job_python):
    words, home = confined
    job = [job_python, str(JOBS / "pets_classifier.py")]
    done = subprocess.run([*words, flatout, "run", "--out", "run", "--", *job], cwd=home, capture_output=True, text=True,
                          timeout=180, env={**os.environ, "HOME": str(home), "TMPDIR": str(home)})
    assert done.returncode == 0, done.stderr
    found = json.loads((home / "run" / "findings.json").read_text())
    assert found["verdict"] == "input.decode_cpu", found["findings"]
    assert found["steps"]["count"] > 50
    missing = {m["signal"]: m for m in found["missing"]}
    assert {"stacks.python", "psi"} <= missing.keys(), missing
    assert all(m["reason"] and m["hint"] for m in missing.values()), missing


def test_the_embedded_trainer_too(confined, flatout):
    words, home = confined
    done = subprocess.run([*words, flatout, "run", "--out", "run", "--", flatout, "train", "--inject", "stall.checkpoint", "--steps", "60"],
                          cwd=home, capture_output=True, text=True, timeout=180, env={**os.environ, "TMPDIR": str(home)})
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "run" / "findings.json").read_text())["verdict"] == "stall.checkpoint"

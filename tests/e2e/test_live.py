"""flatout run --live: the job's lines above, the view below, in a real terminal emulator (tmux)."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from screens import Tmux

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: install the package tmux")]

HEIGHT = 30
PRINTS = """
import os, sys, time
name = input("name? ")
for i in range(60):
    print("line", i, "for", name, flush=True)
    time.sleep(0.1)
while not os.path.exists("enough"):
    time.sleep(0.05)
sys.exit(7)
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "job.py").write_text(PRINTS)
    opened = Tmux(["sh", "-c", f"cd {tmp_path} && exec sh"], width=90, height=HEIGHT, env={"PS1": "$ ", "LC_ALL": "C.UTF-8", "TERM": "xterm"})
    opened.wait(r"^\$")
    yield opened
    opened.close()


def start(shell, flatout):
    shell.text(f"clear; {flatout} run --live -- {sys.executable} job.py; echo code=$?")
    shell.keys("Enter")
    shell.wait("name\\?")


def test_the_job_scrolls_above_the_view_and_has_the_keyboard(shell, flatout, tmp_path):
    start(shell, flatout)
    shell.wait("flatout top")
    shell.text("ada")
    shell.keys("Enter")
    shell.wait("line 40 for ada")
    rows = shell.screen().splitlines()
    edge = next(y for y, row in enumerate(rows) if "flatout top" in row)
    assert HEIGHT // 2 <= edge < HEIGHT
    assert not [row for row in rows[edge:] if row.startswith("line ")], "the view is the view's"
    shell.wait(r"^ *\d+ .*python\S* job\.py")
    shell.wait("line 59 for ada")
    (tmp_path / "enough").touch()
    shell.wait("code=7")
    screen = shell.screen()
    assert "flatout top" not in screen and "exit code 7" in screen
    everything = shell.run("capture-pane", "-p", "-S", "-")
    assert [int(n) for n in re.findall(r"^line (\d+) for ada$", everything, re.M)] == list(range(60))


def test_the_terminal_is_whole_again_when_flatout_is_killed(shell, flatout, tmp_path):
    start(shell, flatout)
    shell.text("ada")
    shell.keys("Enter")
    shell.wait("line 2 for ada")
    shell.wait("flatout top")
    recorder = int((tmp_path / "flatout-runs" / "latest").resolve().name.rsplit("-", 1)[1])
    os.kill(recorder, signal.SIGKILL)
    shell.wait_gone("flatout top")
    shell.wait("line 59 for ada")  # the job goes on
    (tmp_path / "enough").touch()
    shell.text("seq 1 100")
    shell.keys("Enter")
    shell.wait(r"^100$")
    assert re.search(rf"^{100 - HEIGHT + 4}$", shell.screen(), re.M), "the whole screen scrolls"


def test_without_a_terminal_the_job_runs_and_it_is_told(flatout, tmp_path):
    done = subprocess.run([flatout, "run", "--live", "--", "sh", "-c", "echo out; exit 3"], cwd=tmp_path, capture_output=True, start_new_session=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, b"out\n")
    assert b"--live needs a terminal" in done.stderr and b"flatout top" in done.stderr

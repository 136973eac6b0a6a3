"""flatout's full screens in a real terminal emulator (tmux), and processes to look at."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
import uuid

import pytest

# How long something may take to appear. No test fails by being slow before that.
PATIENCE_S = 60


@contextlib.contextmanager
def process(code, *arguments, ready=False):
    with running([sys.executable, "-c", code, *arguments], ready) as child:
        yield child


@contextlib.contextmanager
def running(command, ready=False):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if ready:
            assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()


def wait_for(look, what):
    """What `look` gives as soon as it gives something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not seen within {PATIENCE_S} s: {what}")


class Tmux:
    def __init__(self, command, width=100, height=30, env=None):
        self.socket = f"flatout-{uuid.uuid4().hex[:8]}"
        settings = [f"{k}={v}" for k, v in (env or {}).items()]
        self.run("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "env", *settings, *command)

    def run(self, *words):
        return subprocess.run(["tmux", "-L", self.socket, *words], check=True, capture_output=True, text=True).stdout

    def keys(self, *keys):
        self.run("send-keys", *keys)

    def text(self, *keys):
        self.run("send-keys", "-l", *keys)

    def screen(self):
        return self.run("capture-pane", "-p")

    def wait(self, pattern):
        def look():
            return re.search(pattern, self.screen(), re.M)

        try:
            return wait_for(look, pattern)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.screen()}") from None

    def wait_gone(self, pattern):
        wait_for(lambda: not re.search(pattern, self.screen(), re.M), f"no {pattern}")

    def close(self):
        subprocess.run(["tmux", "-L", self.socket, "kill-server"], capture_output=True)


@pytest.fixture
def tmux(flatout, tmp_path):
    if shutil.which("tmux") is None:
        pytest.skip("no tmux: install the package tmux")
    opened = []

    def start(*options, **more):
        env = {"LC_ALL": "C.UTF-8", "XDG_STATE_HOME": str(tmp_path), **more.pop("env", {})}
        around = more.pop("around", lambda command: command)
        command = [flatout, "top", "--delay", more.pop("delay", "0.3"), *options]
        opened.append(Tmux(around(command), env=env, **more))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def click(screen, pattern):
    """A click, as an xterm sends it, on what the pattern finds on the screen."""
    screen.wait(pattern)
    for y, line in enumerate(screen.screen().split("\n")):
        if found := re.search(pattern, line):
            for end in "Mm":  # pressed, released
                screen.text(f"\x1b[<0;{found.start() + 1};{y + 1}{end}")
            return
    raise AssertionError(f"{pattern} has gone")

"""A `flatout serve` to ask, with runs for it to show."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

JOB = ["train", "--threads", "1", "--loaders", "1", "--quiet"]
PATIENCE = 60


def wait_for(condition, what: str):
    """The first true value of condition(); fails where none comes."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    pytest.fail(f"waited in vain for {what}")


class Server:
    def __init__(self, flatout: str, *words: str):
        self.process = subprocess.Popen([flatout, "serve", *map(str, words), "--port", "0", "--json"], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.told = json.loads(line)
        self.port = self.told["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> str:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=PATIENCE) as answer:
            return answer.read().decode()

    def status(self, path: str, **headers: str) -> int:
        try:
            self.get(path, **headers)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def raw(self, text: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as s:
            s.sendall(text.encode())
            out = b""
            while part := s.recv(65536):
                out += part
            return out

    def runs(self) -> list[dict]:
        return json.loads(self.get("/runs.json"))["runs"]

    def memory(self, key: str = "VmHWM") -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+) kB", text).group(1)) << 10

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def runs(flatout, tmp_path_factory) -> Path:
    """A folder with two runs: one healthy, one that waits for its loader."""
    folder = tmp_path_factory.mktemp("runs")
    for name, inject in (("20250101-first", "none"), ("20250102-second", "input.decode_cpu")):
        subprocess.run([flatout, "run", "--quiet", "--out", str(folder / name), "--", flatout, *JOB, "--steps", "40",
                        "--inject", inject], check=True, timeout=300)
    return folder


@pytest.fixture
def serve(flatout):
    started = []

    def start(*words) -> Server:
        started.append(Server(flatout, *words))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            assert server.end() == 0
        server.process.stdout.close()
        server.process.stderr.close()


@pytest.fixture
def live(flatout, tmp_path):
    """A folder with a run that goes on until the test ends, or ends it."""
    folder = tmp_path / "runs"
    job = subprocess.Popen([flatout, "run", "--quiet", "--out", str(folder / "20250103-live"), "--", flatout, *JOB, "--steps", "10000000"])
    yield folder, job
    if job.poll() is None:
        job.terminate()
    job.wait(PATIENCE)


def metric(text: str, name: str, **labels: str) -> list[float]:
    """The values of the samples of that name with those labels."""
    out = []
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
            out.append(float(match[3]))
    return out

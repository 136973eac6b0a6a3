"""What `flatout serve` costs while it follows a live run: CPU time and memory of its process, by who asks.

usage: python bench/serve/cost.py [FLATOUT]    (default: build/release/flatout)
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CLIENTS = 100
REPORTS_PER_S = 20


class Watch:
    """A process: CPU seconds so far, and memory."""

    def __init__(self, pid: int):
        self.proc = Path(f"/proc/{pid}")

    def cpu_s(self) -> float:
        words = (self.proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def mib(self, key: str) -> int:
        return int(re.search(rf"{key}:\s+(\d+)", (self.proc / "status").read_text())[1]) >> 10

    def phase(self, name: str, seconds: float, each_second=lambda: None) -> None:
        cpu, begin = self.cpu_s(), time.monotonic()
        while time.monotonic() - begin < seconds:
            each_second()
            time.sleep(1)
        share = (self.cpu_s() - cpu) / (time.monotonic() - begin)
        print(f"{name:32} {100 * share:6.2f} % of a core, {self.mib('VmRSS')} MiB, peak {self.mib('VmHWM')} MiB", flush=True)


def main() -> None:
    flatout = sys.argv[1] if len(sys.argv) > 1 else "build/release/flatout"
    folder = Path(tempfile.mkdtemp(prefix="flatout-serve-"))
    job = subprocess.Popen([flatout, "run", "--quiet", "--out", str(folder / "live"), "--", flatout, "train", "--threads", "1", "--loaders", "1",
                            "--quiet", "--steps", "10000000"], stdout=subprocess.DEVNULL)
    time.sleep(3)
    server = subprocess.Popen([flatout, "serve", str(folder), "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    port = json.loads(server.stdout.readline())["port"]
    watch = Watch(server.pid)

    def ask(path: str) -> bytes:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()

    try:
        watch.phase("nobody asks", 15)
        watch.phase("scraped each second", 20, lambda: ask("/metrics"))
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(b"GET /run/live/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        watch.phase(f"{CLIENTS} event streams", 30)
        watch.phase(f"and {REPORTS_PER_S} reports a second", 20, lambda: [ask("/run/live/body") for _ in range(REPORTS_PER_S)])
        print(f"a report: {len(ask('/run/live/body'))} bytes; the metrics: {len(ask('/metrics'))} bytes")
    finally:
        for process in (job, server):
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

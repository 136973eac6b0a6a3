"""Ranks that train together: who holds up the others and why, on real gloo ranks of this machine.

tests/jobs/ranks.py is the job; rank 1 has the cause. Times are not asserted, shares are: a rank that
does about twice the others' work is late on any machine.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from screens import wait_for

JOB = Path(__file__).resolve().parents[1] / "jobs" / "ranks.py"
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in LAUNCHED}

needs_torch = pytest.mark.skipif("PYTHON" not in os.environ and importlib.util.find_spec("torch") is None,
                                 reason="lacks PyTorch")
pytestmark = [pytest.mark.e2e, needs_torch]


def line_of(cause: str) -> int:
    return next(i for i, text in enumerate(JOB.read_text().splitlines(), 1) if text.endswith(f"# CAUSE {cause}"))


def run(flatout: str, python: str, folder: Path, *words: str, timeout: float = 300) -> dict:
    """`flatout run -- python ranks.py words`: what it found, with "code" and "said"."""
    done = subprocess.run([flatout, "run", "--out", str(folder), "--", python, str(JOB), *words],
                          capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, cwd=folder.parent)
    found = json.loads((folder / "findings.json").read_text())
    return {**found, "code": done.returncode, "said": done.stderr}


def straggler(found: dict) -> dict | None:
    return next((f for f in found["findings"] if f["id"] == "dist.straggler"), None)


def skip_if_disturbed(found: dict) -> None:
    """Where other programs take the cores that is a true finding, and drowns the injected one."""
    if any("cpu.noisy_neighbour" in rank["findings"] for rank in found["ranks"]):
        pytest.skip("lacks a quiet machine: programs outside the job took the cores")


# ---- one recorder for all ranks ----


def test_the_late_rank_and_its_own_cause_are_named(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "decode")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    late = straggler(found)
    assert late, (found["verdict"], found.get("ranks"))
    assert [r["rank"] for r in found["ranks"] if r["late"]] == [1]
    assert late["title"].startswith("Rank 1 holds up the others")
    # What the gain says is what the others wait for.
    job = found["job"]
    assert late["cost_ms_per_step"] <= found["ranks"][0]["waiting_ms"] * 1.1
    assert late["gain"] == pytest.approx(job["step_ms"] / (job["step_ms"] - late["cost_ms_per_step"]), rel=0.01)
    assert late["where"]["line"] == line_of("decode"), late


def test_a_rank_that_sleeps_is_named_with_that_cause(flatout, job_python, tmp_path):
    # The other causes: bench/ranks/causes.py.
    found = run(flatout, job_python, tmp_path / "run", "--cause", "sleep")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert [(r["rank"], r["cause"]) for r in found["ranks"] if r["late"]] == [(1, "stall.idle_wait")], found["ranks"]
    assert straggler(found)["where"]["line"] == line_of("sleep")


def test_balanced_ranks_have_no_straggler(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert straggler(found) is None, found["findings"]
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert found["job"]["common_steps"] > 100
    assert not any(r["late"] for r in found["ranks"])


def test_collectives_that_nothing_hides_are_named(flatout, job_python, tmp_path):
    """Ten times what the gradients are, sent while no rank has anything else to do; without it: the test before."""
    found = run(flatout, job_python, tmp_path / "run", "--cause", "messages")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    exposed = next((f for f in found["findings"] if f["id"] == "dist.exposed_communication"), None)
    assert exposed, (found["verdict"], found["job"])
    assert exposed["gain"] > 1.2 and exposed["where"]["line"] == line_of("messages")
    assert any(e["text"].startswith("all_reduce takes rank") for e in exposed["evidence"])
    assert straggler(found) is None


def test_a_stopped_rank_is_named_as_missing(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "stop")
    assert found["verdict"] == "stall.hang", found
    assert found["findings"][0]["title"].startswith("Rank 1 is missing")
    assert [e["value"] for e in found["findings"][0]["evidence"] if e["unit"] == "rank"] == [1]
    assert found["ranks"][1]["state"] == "stopped"


def test_a_rank_that_has_fewer_steps_is_named_as_missing(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "fewer", "--steps", "70")
    assert found["verdict"] == "stall.hang", found
    assert found["findings"][0]["title"].startswith("Rank 1 is missing")


def test_a_killed_rank_is_named_and_not_those_that_miss_it(flatout, job_python, tmp_path):
    found = run(flatout, job_python, tmp_path / "run", "--cause", "kill")
    assert found["verdict"] == "crash.signal", found
    assert found["findings"][0]["title"].startswith("Rank 1:")
    assert found["code"] != 0


# ---- MPI ----

needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="lacks mpirun: install the package openmpi-bin")


def mpirun(ranks: int, *words: str) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *words]


def run_mpi(flatout: str, folder: Path, *words: str) -> dict:
    done = subprocess.run([flatout, "run", "--out", str(folder), "--", *mpirun(2, *words)], capture_output=True, text=True, timeout=300,
                          env=ENVIRONMENT, cwd=folder.parent)
    found = json.loads((folder / "findings.json").read_text())
    return {**found, "code": done.returncode, "said": done.stderr}


@pytest.fixture
def mpi4py(job_python) -> str:
    if subprocess.run([job_python, "-c", "import mpi4py"], capture_output=True, check=False).returncode != 0:
        pytest.skip("lacks mpi4py")
    return job_python


@needs_mpi
def test_a_late_rank_over_mpi_is_named(flatout, mpi4py, tmp_path):
    found = run_mpi(flatout, tmp_path / "run", mpi4py, str(JOB), "--engine", "mpi", "--cause", "sleep")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert [(r["rank"], r["cause"]) for r in found["ranks"] if r["late"]] == [(1, "stall.idle_wait")], found["ranks"]
    assert straggler(found)["where"]["line"] == line_of("sleep")
    waits, works = found["ranks"][0]["waiting_ms"], found["ranks"][1]["waiting_ms"]
    assert waits > 10 > works, (waits, works)


@needs_mpi
def test_balanced_ranks_over_mpi_have_no_straggler(flatout, mpi4py, tmp_path):
    found = run_mpi(flatout, tmp_path / "run", mpi4py, str(JOB), "--engine", "mpi")
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert straggler(found) is None, found["findings"]
    assert found["job"]["common_steps"] > 100
    # The line that meets the others is known by its calls, as those of gloo are.
    met = next(i for i, text in enumerate(JOB.read_text().splitlines(), 1) if text.endswith("# MEETS"))
    for finding in found["findings"]:
        if finding["id"] == "dist.exposed_communication":
            assert finding["where"]["line"] == met
            assert any(e["text"].startswith("MPI_Allreduce takes rank") for e in finding["evidence"]), finding


@needs_mpi
def test_a_killed_rank_over_mpi_is_named(flatout, mpi4py, tmp_path):
    """mpirun ends the others then: they did not fail by themselves."""
    found = run_mpi(flatout, tmp_path / "run", mpi4py, str(JOB), "--engine", "mpi", "--cause", "kill")
    assert found["verdict"] == "crash.signal", found
    assert found["findings"][0]["title"].startswith("Rank 1:")
    assert found["code"] != 0
    assert found["ranks"][1]["wait_status"] == signal.SIGKILL


@needs_mpi
def test_a_rank_that_stopped_is_missed_in_mpi(flatout, mpi4py, tmp_path):
    """The others look again and again whether it has come: on a core, and yet in a collective."""
    words = [flatout, "run", "--out", str(tmp_path / "run"), "--", *mpirun(2, mpi4py, str(JOB), "--engine", "mpi", "--cause", "stop")]
    begun = time.monotonic()
    job = subprocess.Popen(words, env={**ENVIRONMENT, "OUR_JOB": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)

    def ranks() -> dict[int, str]:
        found = {}
        for proc in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                environment = (proc / "environ").read_bytes().split(b"\0")
                if f"OUR_JOB={tmp_path}".encode() in environment and b"OMPI_COMM_WORLD_SIZE=2" in environment:
                    found[int(proc.name)] = (proc / "stat").read_text().rpartition(")")[2].split()[0]
        return found

    wait_for(lambda: "T" in ranks().values(), "a rank that has stopped")
    time.sleep(max(6, 0.5 * (time.monotonic() - begun)))  # many steps, on a slow machine, too
    for pid in ranks():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait(timeout=60)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert found["verdict"] == "stall.hang", (found["verdict"], [(r["state"], r["steps"], r["median_ms"]) for r in found["ranks"]])
    assert found["findings"][0]["title"].startswith("Rank 1 is missing")


@needs_mpi
def test_ranks_of_a_cpp_job_over_mpi(flatout, tmp_path):
    script = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then inject="--inject stall.idle_wait"; fi; exec "$0" train --quiet --steps 120 $inject'
    found = run_mpi(flatout, tmp_path / "run", "sh", "-c", script, flatout)
    assert found["code"] == 0, found["said"]
    skip_if_disturbed(found)
    assert [(r["rank"], r["cause"]) for r in found["ranks"] if r["late"]] == [(1, "stall.idle_wait")], found["ranks"]


def test_a_job_without_mpi_has_nothing_in_front_of_it(flatout, tmp_path):
    done = subprocess.run([flatout, "run", "--quiet", "--", "sh", "-c", "echo [$LD_PRELOAD]"], capture_output=True, text=True, timeout=60,
                          env={k: v for k, v in ENVIRONMENT.items() if k != "LD_PRELOAD"}, cwd=tmp_path)
    assert done.stdout == "[]\n"


# ---- launchers, both ways ----


def torchrun(python: str, *words: str) -> list[str]:
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *words]


def test_below_torchrun_rank_0_speaks_for_all(flatout, job_python, tmp_path):
    words = torchrun(job_python, "--no-python", flatout, "run", "--", job_python, str(JOB), "--cause", "decode")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(p for p in (tmp_path / "flatout-runs").iterdir() if p.is_dir() and not p.is_symlink())
    assert len(folders) == 2
    first, second = sorted(folders, key=lambda p: json.loads((p / "rank.json").read_text())["rank"])
    assert (tmp_path / "flatout-runs" / "latest").resolve() == first.resolve()
    found = json.loads((first / "findings.json").read_text())
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert done.stderr.count("report.html") == 1, "one report for all ranks"
    # The other rank is no neighbour of this one.
    for folder in folders:
        names = [n["pid"] for n in json.loads((folder / "run.json").read_text())["neighbours"]]
        assert not {r["pid"] for r in found["ranks"]} & set(names)
    # The same afterwards, from the folders.
    merged = subprocess.run([flatout, "merge", "--json", str(tmp_path / "flatout-runs"), "-o", str(tmp_path / "job")],
                            capture_output=True, text=True, timeout=60)
    assert merged.returncode == 0, merged.stderr
    again = json.loads(merged.stdout)
    assert again["verdict"] == found["verdict"]
    assert [r["own_ms"] for r in again["ranks"]] == [r["own_ms"] for r in found["ranks"]]
    assert json.loads((tmp_path / "job" / "findings.json").read_text()) == again
    assert 'id="ranks"' in (tmp_path / "job" / "report.html").read_text()
    # And again from what was merged, and from rank 0's own folder: the report of all ranks.
    for folder in (tmp_path / "job", first, tmp_path / "flatout-runs" / "latest"):
        reported = report(flatout, folder)
        assert reported["verdict"] == found["verdict"], folder
        assert [r["own_ms"] for r in reported["ranks"]] == [r["own_ms"] for r in found["ranks"]], folder
    assert "ranks" not in report(flatout, second), "another rank speaks for itself"
    # A comparison is of the rank that holds up the others, whichever way the job is named.
    late = [r["rank"] for r in found["ranks"] if r["late"]] or [0]
    for old, new in ((tmp_path / "job", first), (first, tmp_path / "flatout-runs")):
        compared = subprocess.run([flatout, "compare", str(old), str(new), "--json"], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(compared.stdout)["rank"] == late[0]
    # One trace with the steps of both, which meet in their collectives: no rank is a step ahead.
    steps = steps_in_trace(tmp_path / "job" / "trace.json.gz")
    assert set(steps) == {0, 1}
    common = sorted(set(steps[0]) & set(steps[1]))
    assert len(common) > 100
    assert all(steps[0][n][0] < steps[1][n][1] and steps[1][n][0] < steps[0][n][1] for n in common)


def report(flatout: str, folder: Path) -> dict:
    done = subprocess.run([flatout, "report", str(folder), "--format", "json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def steps_in_trace(path: Path) -> dict[int, dict[int, tuple[float, float]]]:
    """For each rank its steps by number: when they began and ended, in milliseconds."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranks = {}
    for event in events:
        match = re.fullmatch(r"rank (\d+): Steps", str(event.get("args", {}).get("name", "")))
        if event["ph"] == "M" and match:
            ranks[event["pid"]] = int(match[1])
    out: dict[int, dict[int, tuple[float, float]]] = {}
    for event in events:
        match = re.fullmatch(r"step (\d+)", event.get("name", ""))
        if event["ph"] == "X" and match and event["pid"] in ranks:
            begin = event["ts"] / 1e3
            out.setdefault(ranks[event["pid"]], {})[int(match[1])] = (begin, begin + event["dur"] / 1e3)
    return out


def test_around_torchrun_all_ranks_are_in_one_recording(flatout, job_python, tmp_path):
    words = [flatout, "run", "--out", str(tmp_path / "run"), "--", *torchrun(job_python, str(JOB))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert [r["steps"] for r in found["ranks"]] == [120, 120]


# ---- machines without a common folder ----


class Hosts:
    """Where two ranks run: folders of their own, and as root network namespaces with names of their own, joined by a cable."""

    def __init__(self, folder: Path, apart: bool):
        self.folders = [folder / "node0", folder / "node1"]
        for path in self.folders:
            path.mkdir()
        self.address, self.prefixes, self.extra = "127.0.0.1", [[], []], {}
        self.spaces: list[str] = []
        if not apart:
            return
        name = f"fo{os.getpid() % 100000}"
        for command in ([["ip", "netns", "add", f"{name}n{i}"] for i in (0, 1)]
                        + [["ip", "link", "add", f"{name}v0", "netns", f"{name}n0", "type", "veth", "peer", f"{name}v1", "netns", f"{name}n1"]]
                        + [["ip", "-n", f"{name}n{i}", *words] for i in (0, 1) for words in
                           (["addr", "add", f"10.213.77.{i + 1}/24", "dev", f"{name}v{i}"], ["link", "set", f"{name}v{i}", "up"], ["link", "set", "lo", "up"])]):
            done = subprocess.run(command, capture_output=True, text=True)
            if command[1] == "netns" and done.returncode == 0:
                self.spaces.append(command[3])
            if done.returncode != 0:
                self.close()
                pytest.skip(f"lacks network namespaces: {' '.join(command)}: {done.stderr.strip()}")
        self.address = "10.213.77.1"
        self.prefixes = [["ip", "netns", "exec", f"{name}n{i}", "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{i}"] for i in (0, 1)]
        self.extra = [{"GLOO_SOCKET_IFNAME": f"{name}v{i}"} for i in (0, 1)]

    def start(self, rank: int, command: list[str], **env: str) -> subprocess.Popen:
        extra = self.extra[rank] if self.extra else {}
        own = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": self.address}
        return subprocess.Popen([*self.prefixes[rank], *command], cwd=self.folders[rank], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**ENVIRONMENT, **own, **extra, **env})

    def close(self) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@pytest.fixture(params=["folders", "machines"])
def hosts(request, tmp_path):
    apart = request.param == "machines"
    if apart and (os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None):
        pytest.skip("lacks root, ip (iproute2) or unshare: no network namespaces")
    made = Hosts(tmp_path, apart)
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_folders(host: Path) -> dict[int, Path]:
    """The run folders that lie on a host, by rank."""
    found = [p for p in (host / "flatout-runs").iterdir() if p.is_dir() and not p.is_symlink()]
    return {json.loads((p / "rank.json").read_text())["rank"]: p for p in found}


def test_ranks_that_see_no_common_folder_meet_over_tcp(flatout, job_python, hosts):
    command = [flatout, "run", "--", job_python, str(JOB), "--cause", "decode"]
    env = {"MASTER_PORT": str(free_port()), "FLATOUT_MEET": f"{hosts.address}:{free_port()}", "FLATOUT_MEET_TOKEN": "abcdefgh-0123456789"}
    ranks = [hosts.start(rank, command, **env) for rank in (0, 1)]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert list(run_folders(hosts.folders[1])) == [1]
    here = run_folders(hosts.folders[0])
    assert set(here) == {0, 1}, said
    for name in ("events.bin", "series.bin", "rank.json"):
        assert (here[1] / name).read_bytes() == (run_folders(hosts.folders[1])[1] / name).read_bytes()
    found = json.loads((here[0] / "findings.json").read_text())
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert said[0].count("report.html") == 1 and "report.html" not in said[1]
    skip_if_disturbed(found)
    assert straggler(found)["title"].startswith("Rank 1 holds up the others")
    if hosts.extra:
        assert [r["host"] for r in found["ranks"]] == ["node0", "node1"]
        # One machine's clock under two names: what aligns them by their collectives finds hardly anything.
        assert abs(found["ranks"][1]["clock_ms"]) < found["job"]["step_ms"]


def test_a_rank_with_another_token_is_left_out_and_goes_on(flatout, tmp_path):
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    meet = f"127.0.0.1:{free_port()}"
    jobs = []
    for rank, (node, token) in enumerate(zip(nodes, ("abcdefgh-0123456789", "another-token-123456"))):
        node.mkdir()
        env = {**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "FLATOUT_MEET_TOKEN": token}
        jobs.append(subprocess.Popen([flatout, "run", "--meet", meet, "--", "sh", "-c", f"sleep {2 - rank}; exit {7 * rank}"], cwd=node, env=env,
                                     stderr=subprocess.PIPE, text=True))
    said = [job.communicate(timeout=60)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 7]
    assert "did not take the recording" in said[1] and str(nodes[1]) in said[1]
    assert list(run_folders(nodes[0])) == [0]


def test_a_meeting_needs_a_place_and_a_token(flatout, tmp_path):
    env = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "2"}
    for words, told in ((["--meet", "nowhere"], "HOST:PORT"), (["--meet", "127.0.0.1:1"], "FLATOUT_MEET_TOKEN")):
        done = subprocess.run([flatout, "run", *words, "--", "true"], capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.returncode == 2 and told in done.stderr, done.stderr


# ---- flatout merge ----


def test_merge_says_what_it_lacks(flatout, tmp_path):
    done = subprocess.run([flatout, "merge", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no run folder" in done.stderr and "flatout-runs/*-r*" in done.stderr
    assert subprocess.run([flatout, "merge"], capture_output=True).returncode == 2


def test_compare_takes_one_rank_of_a_merged_folder(flatout, tmp_path):
    job = ["env", "-u", "RANK", "-u", "WORLD_SIZE", flatout, "train", "--steps", "60", "--quiet"]  # which would look for the others
    ranks = [subprocess.Popen([flatout, "run", "--quiet", "--out", "runs", "--", *job], cwd=tmp_path, stdout=subprocess.DEVNULL,
                              env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    one, other = "runs/rank-0", "runs/rank-1"
    subprocess.run([flatout, "merge", one, other, "-o", "all"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([flatout, "compare", "all", other], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "all is the report of 2 ranks" in done.stderr and one in done.stderr, done.stderr
    # A folder of all ranks against another one: the same rank of both.
    done = subprocess.run([flatout, "compare", "all", "all", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    same = json.loads(done.stdout)
    assert same["rank"] in (0, 1) and same["verdict"] == "no_difference" and same["old"]["steps"] == same["new"]["steps"] > 0
    assert subprocess.run([flatout, "compare", one, other], cwd=tmp_path, capture_output=True).returncode == 0

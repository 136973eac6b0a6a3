"""The metrics of `flatout serve` as Prometheus and Grafana take them, and what serving them for long costs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from serving import JOB, PATIENCE, Server, live, metric, serve, wait_for  # noqa: F401

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]


def program(name: str) -> str:
    """One of Prometheus's programs: of the system, or as tools/setup.sh took it out of its package."""
    unpacked = ROOT / "build/prometheus/usr/bin" / name
    found = shutil.which(name) or (str(unpacked) if os.access(unpacked, os.X_OK) else "")
    if not found:
        pytest.skip(f"lacks {name}: install the package prometheus, or run tools/setup.sh test")
    return found


@pytest.fixture
def steps(serve, live) -> Server:
    """A server of a live run that has done steps."""
    folder, _ = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    server = serve(folder)
    wait_for(lambda: metric(server.get("/metrics"), "flatout_step_seconds_count"), "steps")
    return server


def test_promtool_finds_nothing_amiss(steps):
    text = steps.get("/metrics")
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, text=True, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_own_library_parses_both_formats(steps):
    parser = pytest.importorskip("prometheus_client.parser", reason="lacks prometheus-client")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    opened = steps.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert {f.name for f in openmetrics.text_string_to_metric_families(opened)} >= {"flatout_step_seconds", "flatout_steps", "flatout_run"}
    assert "flatout_step_seconds" in {f.name for f in parser.text_string_to_metric_families(steps.get("/metrics"))}


def dashboard_metrics() -> set[str]:
    board = json.loads((ROOT / "examples/grafana.json").read_text())
    asked = [t["expr"] for p in board["panels"] for t in p["targets"]] + [v["query"]["query"] for v in board["templating"]["list"][1:]]
    return {name for text in asked for name in re.findall(r"\bflatout_\w+", text)}


def test_every_metric_of_the_dashboard_is_exported_and_every_exported_one_documented(flatout, serve, tmp_path):
    library = Path(flatout).resolve().parent / "nvml_stand_in"
    if not library.exists():
        pytest.skip("lacks the stand-in for NVML: it is built with the tests")
    (tmp_path / "nvml").write_text("devices 1\ndriver 570.10\ncuda 12080\n0 name Test Card\n0 util 87\n0 mem_util 40\n0 mem_total 1000\n"
                                   "0 mem_used 600\n0 clock_sm 1410\n0 power 250500\n0 temperature 61\n0 throttle 0\n0 ecc 0\n")
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STAND_IN": str(tmp_path / "nvml")}
    folder = tmp_path / "runs"
    job = subprocess.Popen([flatout, "run", "--quiet", "--out", str(folder / "live"), "--", flatout, *JOB, "--inject", "input.decode_cpu",
                            "--steps", "10000000"], env=env)
    try:
        wait_for(lambda: (folder / "live" / "series.bin").exists(), "the run folder")
        server = serve(folder)
        names = dashboard_metrics()
        assert len(names) > 10

        def lacking() -> set[str]:
            exported = set(re.findall(r"^(flatout_\w+)[ {]", server.get("/metrics"), re.M))
            return names - exported

        try:
            wait_for(lambda: not lacking(), "all metrics of the dashboard")
        except BaseException:
            print("not exported:", lacking())
            raise
        families = set(re.findall(r"^# TYPE (\w+) ", server.get("/metrics"), re.M))
        documented = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
        assert families - documented == set()
    finally:
        job.terminate()
        job.wait(PATIENCE)


ROUNDS, REQUESTS = 3, 60  # of each kind of request
MOST_GROWTH = 6 << 20
FILES_KEPT = 8  # descriptors: the files of runs that were asked for stay open for a while


def test_serving_for_long_keeps_memory_descriptors_and_threads_bounded(flatout, serve, tmp_path):
    """What a leak of 4 KiB in any kind of request, or of one descriptor or thread, would not survive."""
    folder = tmp_path / "runs"
    subprocess.run([flatout, "run", "--quiet", "--out", str(folder / "first"), "--", flatout, *JOB, "--steps", "40"], check=True, timeout=300)
    server = serve(folder)
    wait_for(lambda: all(r["verdict"] for r in server.runs()), "the verdict")
    proc = Path(f"/proc/{server.process.pid}")

    def held() -> tuple[int, int]:
        return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))

    def gone(path: str) -> None:
        """Asks, and leaves before the answer has come."""
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def one_round() -> None:
        for _ in range(REQUESTS):
            for path in ("/", "/runs.json", "/metrics", "/run/first", "/run/first/findings.json", "/compare.json?old=first&new=first"):
                assert server.get(path)
            assert server.status("/run/none") == 404
            server.raw("GET / HTTP/9\r\nnonsense\r\n\r\n")
            for path in ("/run/first", "/events", "/run/first/events"):
                gone(path)
        others = [folder / f"other-{i}" for i in range(3)]  # runs come and go
        for other in others:
            shutil.copytree(folder / "first", other)
        wait_for(lambda: len(server.runs()) == 4, "the new runs")
        for other in others:
            assert server.status(f"/run/{other.name}") == 200
            shutil.rmtree(other)
        wait_for(lambda: len(server.runs()) == 1, "their end")

    def as_before() -> bool:
        descriptors, threads = held()
        return descriptors <= before[0] + FILES_KEPT and threads <= before[1]

    before = held()
    one_round()
    wait_for(as_before, "descriptors and threads as before")
    memory = server.memory("VmRSS")
    for _ in range(ROUNDS - 1):
        one_round()
    wait_for(as_before, "descriptors and threads as before")
    assert server.memory("VmRSS") - memory < MOST_GROWTH


def test_the_examples_ask_for_metrics_that_there_are():
    documented = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
    documented |= {name + suffix for name in documented for suffix in ("_bucket", "_sum", "_count") if name == "flatout_step_seconds"}
    text = (ROOT / "docs/serve.md").read_text().split("## Prometheus")[1].split("## Who")[0]
    used = dashboard_metrics() | set(re.findall(r"\bflatout_\w+", text))
    assert len(used) > 10 and used <= documented
    subprocess.run(["bash", "-n", str(ROOT / "examples/slurm.sbatch")], check=True)


def test_the_dashboard_is_one_that_grafana_can_load():
    """What Grafana refuses or draws wrongly: ids and places that clash, sources and variables that are not there."""
    board = json.loads((ROOT / "examples/grafana.json").read_text())
    variables = {v["name"] for v in board["templating"]["list"]}
    ids = [p["id"] for p in board["panels"]]
    assert len(set(ids)) == len(ids) and all(isinstance(i, int) for i in ids)
    assert isinstance(board["schemaVersion"], int) and len(board["uid"]) <= 40
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert cells and not cells & taken, panel["title"]
        taken |= cells
        refs = [t["refId"] for t in panel["targets"]]
        assert refs and len(set(refs)) == len(refs), panel["title"]
        for source in [panel["datasource"], *(t["datasource"] for t in panel["targets"])]:
            assert source == {"type": "prometheus", "uid": "${source}"}, panel["title"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}, panel["title"]


def test_a_real_prometheus_scrapes_the_server_and_answers_the_dashboard(serve, live, tmp_path):
    server_program = program("prometheus")
    yaml = pytest.importorskip("yaml", reason="lacks PyYAML: pip install pyyaml")
    folder, _ = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    server = serve(folder)
    wait_for(lambda: metric(server.get("/metrics"), "flatout_step_part_seconds_total"), "steps")
    # The configuration is the documentation's.
    text = (ROOT / "docs/serve.md").read_text().split("    scrape_configs:\n")[1].split("\n\n")[0]
    config = yaml.safe_load("scrape_configs:\n" + "\n".join(line[4:] for line in text.splitlines()))
    job = config["scrape_configs"][0]
    del job["authorization"]
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    prometheus = subprocess.Popen([server_program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                                   f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def query(expression: str) -> list:
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=PATIENCE) as answer:
            return json.loads(answer.read())["data"]["result"]

    def answered(expression: str):
        try:
            return query(expression)
        except OSError:
            return None

    try:
        wait_for(lambda: answered("rate(flatout_steps_total[10s]) > 0"), "two scrapes")
        assert query("up")[0]["value"][1] == "1"
        board = json.loads((ROOT / "examples/grafana.json").read_text())
        empty = []
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "10s").replace("$run", ".*").replace("$group", ".*")
                if not query(expression):  # an error of the expression is an HTTP error
                    empty.append(panel["title"])
        # No GPU here, and no cause in this run.
        assert all(re.search("GPU|[Gg]ain|[Ff]inding|[Cc]ause|throttle", title) for title in empty), empty
        for expression in re.findall(r"\n    (?:rate\(|max by)(?:.|\n)*?(?=\n    #|\n\n)", (ROOT / "docs/serve.md").read_text()):
            assert query(" ".join(expression.replace("5m", "10s").split())), expression
    finally:
        prometheus.terminate()
        prometheus.wait(PATIENCE)

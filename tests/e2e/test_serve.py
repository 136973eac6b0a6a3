"""`flatout serve` and `flatout run --serve` as their users meet them: Prometheus, a browser, and whoever should not get in."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from serving import PATIENCE, live, metric, runs, serve, wait_for  # noqa: F401

pytestmark = pytest.mark.parallel

TOKEN = "abcdefgh-0123456789"
HOSTILE = "<img src=x onerror=alert(1)></script><b>&amp;"


@pytest.fixture
def page(browser, serve):  # closed before the server ends
    """A tab in which nothing may go wrong, and which asks nobody but the server."""
    problems = []
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.on("console", lambda m: problems.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: problems.append(f"error: {e}"))
    page.on("request", lambda r: problems.append(f"request: {r.url}") if not r.url.startswith("http://127.0.0.1:") else None)
    yield page
    context.close()
    assert problems == []


def until(page, what: str) -> None:
    """Waits for an expression to be true; the pages' policy forbids Playwright's own way, which evaluates text in them."""
    wait_for(lambda: page.evaluate(what), what)


def test_lists_the_runs_with_what_their_files_say(serve, runs):
    server = serve(runs)
    wait_for(lambda: all(r["verdict"] for r in server.runs()), "the verdicts")
    listed = {r["id"]: r for r in server.runs()}
    assert list(listed) == ["20250102-second", "20250101-first"]
    for name, run in listed.items():
        found = json.loads((runs / name / "findings.json").read_text())
        assert run["verdict"] == found["verdict"]
        assert run["steps"] == found["steps"]["count"]
        assert run["exit"] == "exit code 0" and not run["live"]
        served = json.loads(server.get(f"/run/{name}/findings.json"))
        assert served["verdict"] == found["verdict"] and served["steps"] == found["steps"]


def test_counters_of_a_live_run_grow_and_agree_with_its_end(serve, flatout, live):
    folder, job = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    server = serve(folder)
    first = wait_for(lambda: metric(server.get("/metrics"), "flatout_steps_total"), "steps")[0]
    more = wait_for(lambda: [v for v in metric(server.get("/metrics"), "flatout_steps_total") if v > first + 5], "more steps")[0]
    text = server.get("/metrics")
    assert metric(text, "flatout_run_live", run="20250103-live") == [1]
    assert sum(metric(text, "flatout_step_part_ratio")) == pytest.approx(1)
    assert sum(metric(text, "flatout_step_part_seconds_total")) == pytest.approx(metric(text, "flatout_step_seconds_sum")[0])
    assert metric(text, "flatout_step_seconds_bucket", le="+Inf") == metric(text, "flatout_step_seconds_count")
    assert metric(text, "flatout_host_cores")[0] > 0
    job.terminate()
    job.wait(PATIENCE)
    wait_for(lambda: metric(server.get("/metrics"), "flatout_run_live") == [0], "the end")
    text = server.get("/metrics")
    found = json.loads((folder / "20250103-live" / "findings.json").read_text())
    assert metric(text, "flatout_steps_total")[0] >= more
    assert metric(text, "flatout_steps_total")[0] == pytest.approx(found["steps"]["count"], abs=2)
    assert metric(text, "flatout_run_exit_code") == [128 + signal.SIGTERM]


def test_nothing_but_runs_can_be_read(serve, runs, tmp_path):
    inside = tmp_path / "served"
    shutil.copytree(runs, inside)
    secret = tmp_path / "secret"
    shutil.copytree(runs / "20250101-first", secret)
    (secret / "run.json").write_text('{"schema":1,"command":"SECRET"}')
    (tmp_path / "SECRET.txt").write_text("SECRET")
    (inside / "20250103-link").symlink_to(secret)
    (inside / "latest").symlink_to("20250102-second")
    hollow = inside / "20250104-hollow"
    hollow.mkdir()
    for name in ("series.bin", "events.bin"):
        (hollow / name).symlink_to(secret / name)
    piped = inside / "20250105-pipe"
    piped.mkdir()
    os.mkfifo(piped / "series.bin")
    os.mkfifo(piped / "events.bin")
    planted = inside / "20250101-first" / "run.json"
    planted.unlink()
    planted.symlink_to(secret / "run.json")
    server = serve(inside)
    wait_for(lambda: all(r["verdict"] for r in server.runs()), "the verdicts")
    assert [r["id"] for r in server.runs()] == ["20250102-second", "20250101-first"]
    assert "SECRET" not in server.get("/runs.json")
    for path in ("/../SECRET.txt", "/run/../../SECRET.txt", "/run/20250101-first/../../../SECRET.txt", "/run/..%2f..%2fSECRET.txt",
                 "/%2e%2e/SECRET.txt", "/run/20250103-link", "/run/latest", "/run/20250104-hollow", "/run/20250101-first/series.bin",
                 "/run/20250101-first/report.html", f"/{tmp_path}/SECRET.txt", "/run/20250101-first%00", "/run//etc/passwd"):
        answer = server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404"), path
        assert b"SECRET" not in answer and b"root:" not in answer


def test_serving_writes_nothing(serve, runs):
    def state():
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in runs.rglob("*")}

    before = state()
    server = serve(runs)
    for path in ("/", "/runs.json", "/metrics", "/run/20250101-first", "/compare?old=20250101-first&new=20250102-second"):
        assert server.get(path)
    assert server.end() == 0
    assert state() == before


def listening(pid: int) -> set[str]:
    """The local addresses, as /proc has them, on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                inodes.add(match[1])
        except OSError:
            pass
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(words[1].split(":")[0])
    return found


def test_listens_on_loopback_unless_told_and_never_elsewhere_without_a_token(flatout, serve, runs, tmp_path):
    assert listening(serve(runs).process.pid) == {"0100007F"}
    for address in ("0.0.0.0", "::", "10.0.0.1"):
        done = subprocess.run([flatout, "serve", str(runs), "--listen", address, "--port", "0"], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2 and "--token-file" in done.stderr
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():  # in brackets, as a URL has it
        server = serve(runs, "--listen", "[::1]")
        assert listening(server.process.pid) == {"00000000000000000000000001000000"}
    token = tmp_path / "token"
    for bad in ("", "short", "with blanks in between them"):
        token.write_text(bad + "\n")
        done = subprocess.run([flatout, "serve", str(runs), "--listen", "0.0.0.0", "--port", "0", "--token-file", str(token)],
                              capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode in (1, 2) and "token" in done.stderr
    token.write_text(TOKEN + "\n")
    server = serve(runs, "--listen", "0.0.0.0", "--token-file", token)
    assert listening(server.process.pid) == {"00000000"}
    assert server.status("/runs.json") == 401
    assert server.status("/runs.json", Authorization="Bearer wrong-0123456789") == 401
    assert server.status("/runs.json", Authorization=f"Bearer {TOKEN}", Host="gpu-node:8610") == 200
    assert server.status("/healthz") == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate for localhost and its key, made by openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("lacks openssl: install the package openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key


def test_over_tls_pages_metrics_and_events_are_answered(serve, live, certificate, tmp_path):
    cert, key = certificate
    folder, job = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    server = serve(folder, "--tls-cert", cert, "--tls-key", key, "--token-file", token)
    assert server.told["url"] == f"https://127.0.0.1:{server.port}/"
    trusting = ssl.create_default_context(cafile=str(cert))

    def ask(path: str, **headers: str):
        url = f"https://localhost:{server.port}{path}"
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE, context=trusting)

    assert ask("/healthz").read() == b"ok\n"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("/metrics")
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    wait_for(lambda: metric(ask("/metrics", **bearer).read().decode(), "flatout_steps_total"), "steps")
    with ask("/run/20250103-live/events", **bearer) as events:
        seen = [int(re.search(rb'"revision":(\d+)', line).group(1)) for line in (events.readline() for _ in range(12)) if b"revision" in line]
        assert len(seen) >= 2 and seen == sorted(seen)
    # The cookie goes over encrypted connections only.
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=PATIENCE, context=trusting)
    connection.request("GET", f"/?token={TOKEN}")
    assert "; Secure" in connection.getresponse().getheader("Set-Cookie")
    connection.close()
    # Whoever does not know the certificate, or speaks no TLS, or none that is new enough, gets nothing.
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://localhost:{server.port}/healthz", timeout=PATIENCE, context=ssl.create_default_context())
    assert b"200" not in server.raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    old = subprocess.run(["openssl", "s_client", "-connect", f"localhost:{server.port}", "-tls1_1"], input=b"", capture_output=True, timeout=PATIENCE)
    assert old.returncode != 0 and b"Cipher is (NONE)" in old.stdout


def test_tls_needs_a_pair_of_files(flatout, runs, certificate, tmp_path):
    cert, key = certificate
    (tmp_path / "other.pem").write_text("no PEM at all\n")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "stranger.pem"], check=True, capture_output=True)
    for words, code, told in ((["--tls-cert", cert], 2, "--tls-key"), (["--tls-key", key], 2, "--tls-cert"),
                              (["--tls-cert", cert, "--tls-key", tmp_path / "none"], 1, "none"),
                              (["--tls-cert", tmp_path / "other.pem", "--tls-key", key], 1, "other.pem"),
                              (["--tls-cert", cert, "--tls-key", tmp_path / "stranger.pem"], 2, "no pair")):
        done = subprocess.run([flatout, "serve", str(runs), "--port", "0", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == code and told in done.stderr, (words, done.stderr)


def test_another_name_for_this_machine_is_no_way_in(serve, runs):
    server = serve(runs)
    assert server.status("/runs.json", Host="evil.example") == 403
    assert server.status("/runs.json", Host=f"localhost:{server.port}") == 200


def test_hundred_clients_follow_at_once_and_memory_stays_bounded(serve, live):
    folder, job = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    server = serve(folder)
    clients = []
    for i in range(100):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        path = "/run/20250103-live/events" if i % 2 else "/events"
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        clients.append(s)

    def revision(s) -> int:
        text = b""
        while not (found := re.findall(rb'"revision":(\d+),"live":true', text)):
            part = s.recv(65536)
            assert part, text
            text += part
        return int(found[-1])

    def of_the_list(s) -> int:
        text = b""
        while not (found := re.findall(rb'"revision":(\d+)', text)):
            part = s.recv(65536)
            assert part, text
            text += part
        return int(found[-1])

    first = [revision(s) if i % 2 else of_the_list(s) for i, s in enumerate(clients)]
    second = [revision(s) if i % 2 else of_the_list(s) for i, s in enumerate(clients)]
    assert all(b > a for a, b in zip(first, second))
    assert server.get("/run/20250103-live")
    assert metric(server.get("/metrics"), "flatout_run_live") == [1]
    assert server.memory() < 256 << 20
    for s in clients:
        s.close()


def test_many_runs_take_no_more_memory(serve, runs, tmp_path):
    many = tmp_path / "many"
    for i in range(60):
        shutil.copytree(runs / "20250102-second", many / f"20250201-{i:03}")
    server = serve(many)
    wait_for(lambda: len(server.runs()) == 60 and all(r["verdict"] for r in server.runs()), "60 summaries")
    for i in range(0, 60, 5):
        assert server.status(f"/run/20250201-{i:03}") == 200
    assert server.memory() < 256 << 20


def test_the_list_shows_runs_history_and_comparison(page, serve, runs):
    server = serve(runs)
    page.goto(server.url + "/")
    page.wait_for_selector("html[data-ready]")
    until(page, "document.querySelectorAll('#rows tr[data-run] code').length === 2 && "
                "[...document.querySelectorAll('#rows tr[data-run] code')].every((c) => c.textContent)")
    second = json.loads((runs / "20250102-second" / "findings.json").read_text())
    assert second["verdict"] in page.locator("tr[data-run='20250102-second']").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    page.fill("#filter", "no such thing")
    assert page.locator("#rows tr").count() == 0
    page.fill("#filter", "second decode_cpu" if second["verdict"] == "input.decode_cpu" else "second")
    assert page.locator("#rows tr").count() == 1
    page.fill("#filter", "")
    for box in page.locator("#rows input").all():
        box.check()
    page.click("#compare")
    page.wait_for_selector("#compare .numbers")
    compared = json.loads(server.get("/compare.json?old=20250101-first&new=20250102-second"))
    assert compared["headline"] in page.locator("#compare .headline").inner_text()
    page.wait_for_selector("html[data-ready]")
    page.click("text=All runs")
    page.wait_for_selector("#rows tr[data-run]")


def test_a_run_of_several_ranks_is_one_group(page, serve, runs, tmp_path):
    folder = tmp_path / "ranks"
    for rank in range(3):
        target = folder / f"20250105-r{rank}"
        shutil.copytree(runs / "20250101-first", target)
        told = json.loads((target / "run.json").read_text())
        told["facts"] |= {"rank": str(rank), "env.SLURM_JOB_ID": "77"}
        told["command"] = HOSTILE
        (target / "run.json").write_text(json.dumps(told))
        found = json.loads((target / "findings.json").read_text())
        found["steps"]["median_ms"] = 10.0 + rank % 2  # rank 1 is the slowest
        (target / "findings.json").write_text(json.dumps(found))
    for name in ("20250106-a", "20250107-b"):  # of one command, without ranks: a history
        shutil.copytree(runs / "20250101-first", folder / name)
    server = serve(folder)
    page.goto(server.url + "/")
    page.wait_for_selector("tr.ranks")
    # The folders are read one after the other; the page shows each as soon as it is known.
    until(page, "document.querySelector('tr.ranks').textContent.includes('3 ranks')")
    until(page, "document.querySelector('tr.ranks').textContent.includes('slowest: rank 1')")
    text = page.locator("tr.ranks").inner_text()
    assert "slurm-77" in text and HOSTILE in text
    assert page.locator("#rows tr.rank").count() == 3
    until(page, "document.querySelectorAll('#history .history rect').length === 2")
    assert page.locator("#rows .slowest").count() == 1


def test_the_page_of_a_live_run_follows_it_to_its_end(page, serve, live):
    folder, job = live
    wait_for(lambda: (folder / "20250103-live" / "series.bin").exists(), "the run folder")
    server = serve(folder)
    wait_for(lambda: any(r["steps"] > 20 for r in server.runs()), "steps")
    page.goto(server.url + "/run/20250103-live")
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#live-state").inner_text() in ("Live", "")

    def steps() -> int:
        return int(re.search(r"(\d+)\s+steps,", page.locator("#steps .numbers").inner_text()).group(1))

    first = steps()
    page.locator("#details > details > summary").first.click()
    until(page, f"+(document.documentElement.dataset.revision || 0) > {page.locator('#live').get_attribute('data-revision')}")
    wait_for(lambda: steps() > first, "more steps")
    assert page.locator("#details > details").first.get_attribute("open") is not None  # what was opened stays open
    assert page.locator("canvas").count() >= 3
    assert page.evaluate("Object.keys(Chart.instances).length === document.querySelectorAll('canvas').length")
    page.click("#live-pause")
    assert page.locator("#live-state").inner_text().startswith("Paused")
    page.click("#live-pause")
    job.terminate()
    until(page, "document.getElementById('live-state').textContent === 'The run has ended.'")
    until(page, "document.querySelector('ul.run .bad') !== null")  # killed by a signal
    assert page.locator("#live-pause").is_hidden()


def test_run_serve_shows_the_job_and_leaves_it_alone(flatout, tmp_path):
    script = "import sys, time\nfor i in range(80):\n    print(i, flush=True)\n    time.sleep(0.1)\nsys.exit(7)\n"
    (tmp_path / "job.py").write_text(script)
    job = subprocess.Popen([flatout, "run", "--serve", "--port", "0", "--quiet", "--out", str(tmp_path / "run"), "--", sys.executable, "job.py"],
                           cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = job.stderr.readline().decode()
    url = re.search(r"serving (http://127\.0\.0\.1:\d+)/", said).group(1)
    run = wait_for(lambda: json.loads(urllib.request.urlopen(url + "/runs.json", timeout=PATIENCE).read())["runs"], "the run")[0]
    assert run["live"] and run["id"] == "run"
    wait_for(lambda: b"job.py" in urllib.request.urlopen(url + "/run/run", timeout=PATIENCE).read(), "its command")
    out, _ = job.communicate(timeout=PATIENCE)
    assert out == b"".join(b"%d\n" % i for i in range(80))
    assert job.returncode == 7
    with pytest.raises(OSError):
        urllib.request.urlopen(url + "/healthz", timeout=5)
    processes = json.loads((tmp_path / "run" / "run.json").read_text())["processes"]
    assert [p["main"] for p in processes] == [True]  # the server is none of the job's


def test_a_killed_flatout_takes_its_server_with_it(flatout, tmp_path):
    job = subprocess.Popen([flatout, "run", "--serve", "--port", "0", "--quiet", "--out", str(tmp_path / "run"), "--", "sleep", "60"],
                           cwd=tmp_path, stderr=subprocess.PIPE)
    url = re.search(r"serving (http://127\.0\.0\.1:\d+)/", job.stderr.readline().decode()).group(1)
    sleeper = next(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and is_child(p, job.pid, b"sleep\0"))
    job.kill()
    job.wait(PATIENCE)

    def gone():
        try:
            urllib.request.urlopen(url + "/healthz", timeout=5).read()
            return False
        except OSError:
            return True

    wait_for(gone, "the server's end")
    os.kill(sleeper, signal.SIGTERM)
    job.stderr.close()


def is_child(proc: Path, parent: int, command: bytes) -> bool:
    try:
        return (proc / "cmdline").read_bytes().startswith(command) and int((proc / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
    except (OSError, IndexError):
        return False


def test_bad_usage_is_told(flatout, runs, tmp_path):
    for words, code, told in ((["--port", "70000"], 2, "65535"), (["--port", "x"], 2, "port"), ([str(tmp_path / "none")], 1, "none"),
                              (["--token-file", str(tmp_path / "none"), str(runs)], 1, "token"), (["--listen", "name", str(runs)], 2, "token")):
        done = subprocess.run([flatout, "serve", *words], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
        assert done.returncode == code and told in done.stderr, (words, done.stderr)


def test_the_kubernetes_example_is_well_formed():
    yaml = pytest.importorskip("yaml", reason="lacks PyYAML: pip install pyyaml")
    root = Path(__file__).resolve().parents[2]
    documents = {d["kind"]: d for d in yaml.safe_load_all((root / "examples/kubernetes.yaml").read_text())}
    assert list(documents) == ["Secret", "Service", "Job"]
    pod = documents["Job"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    # What refers to something refers to something that is there.
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
    assert volumes["token"]["secret"]["secretName"] == documents["Secret"]["metadata"]["name"]
    assert pod["subdomain"] == documents["Service"]["metadata"]["name"]
    assert documents["Service"]["spec"]["selector"]["job-name"] == documents["Job"]["metadata"]["name"]
    named = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["port"] in named
    annotations = documents["Job"]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) in named.values()
    world = next(e["value"] for e in container["env"] if e["name"] == "WORLD_SIZE")
    assert int(world) == documents["Job"]["spec"]["completions"] == documents["Job"]["spec"]["parallelism"]
    subprocess.run(["sh", "-n", "-c", container["command"][2]], check=True)

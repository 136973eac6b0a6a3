"""What all commands share: their help, their options, the files that they are told to write, and what they refuse."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]


def call(flatout, *words, **kw):
    kw.setdefault("timeout", 120)
    return subprocess.run([flatout, *map(str, words)], capture_output=True, text=True, **kw)


@pytest.fixture(scope="module")
def commands(flatout, tmp_path_factory) -> list[list[str]]:
    """Every command with its parts, by the manual's pages."""
    pages = tmp_path_factory.mktemp("pages")
    assert call(flatout, "manual", pages).returncode == 0
    names = re.findall(r"^\.BR flatout\\-(\S+) \(1\)", (pages / "flatout.1").read_text(), re.M)
    found = [name.replace("\\-", " ").split() for name in names]
    assert ["run"] in found and ["trace", "record"] in found
    return found


@pytest.fixture(scope="module")
def recorded(flatout, tmp_path_factory) -> Path:
    """A folder with two runs below flatout-runs."""
    folder = tmp_path_factory.mktemp("recorded")
    for _ in range(2):
        assert call(flatout, "run", "--quiet", "--", sys.executable, "-c", "import time; time.sleep(1)", cwd=folder).returncode == 0
    return folder


# ---- help ----


def test_help_fits_a_terminal_of_80_columns(flatout, commands):
    for words in [*commands, [], ["trace"], ["cache"], ["devmem"], ["feed"]]:
        text = call(flatout, *words, "--help").stdout
        assert text and not [line for line in text.splitlines() if len(line) > 80], words


def test_help_says_only_what_is_true_of_its_command(flatout, commands):
    names = {" ".join(words) for words in commands} | {words[0] for words in commands}
    for words in commands:
        options = call(flatout, *words, "--help").stdout.split("Options:")[1]
        for text in re.findall(r"^ {2}-\S+(?: [A-Z]+\S*)?\s+(\S[^:\n]*): ", options, re.M):
            assert not set(text.split(", ")) <= names, (words, text)
        assert not re.findall(r"^ {2}--\S+(?: [A-Z]+\S*)?\n(?! {20})", options, re.M), f"an option of {words} has no text"


def test_whole_numbers_are_told_from_others(flatout):
    text = call(flatout, "train", "--help").stdout
    assert "--steps INT=300" in text and "--momentum FLOAT=0.9" in text
    assert "--port INT=8610" in call(flatout, "run", "--help").stdout


def test_the_pages_name_every_command_and_its_options(flatout, commands):
    page = (ROOT / "docs/commands.md").read_text()
    for words in commands:
        section = page.split(f"\n## flatout {' '.join(words)}\n")[1].split("\n## ")[0]
        for option in re.findall(r"^ {2}(?:-\w,)?(--[a-z-]+)", call(flatout, *words, "--help").stdout, re.M):
            assert f"`{option}" in section or option == "--help", (words, option)


# ---- numbers and other values ----


@pytest.mark.parametrize("words, said", [
    (["run", "--rate", "-5", "--", "touch", "ran"], "--rate is a number from 0.1 to 1000, not '-5'"),
    (["run", "--rate=0", "--", "touch", "ran"], "--rate is a number from 0.1 to 1000"),
    (["run", "--rate", "nan", "--", "touch", "ran"], "--rate is a number from 0.1 to 1000"),
    (["run", "--keep-runs", "-1", "--", "touch", "ran"], "--keep-runs is a whole number of 0 or more"),
    (["cache", "warm", "--mb-per-s", "-1", "."], "--mb-per-s is a number of 0 or more"),
    (["train", "--steps", "1.5"], "--steps is a whole number of 1 or more, not '1.5'"),
    (["train", "--steps", "-1"], "--steps is a whole number of 1 or more"),
    (["train", "--batch", "0"], "--batch is a whole number from 1 to 4096"),
    (["train", "--threads", "-3"], "--threads is a whole number from 0 to 1024"),
    (["train", "--seed", "99999999999999999999"], "--seed is a whole number from 0 to 9223372036854775807, not '99999999999999999999'"),
    (["train", "--seed", "9223372036854775808"], "--seed is a whole number from 0 to 9223372036854775807"),
    (["train", "--seed", "inf"], "--seed is a whole number from 0 to 9223372036854775807"),
    (["feed", "bench", "--seed", "1e19", "."], "--seed is a whole number from 0 to 9223372036854775807"),
    (["train", "--learning-rate", "inf"], "--learning-rate is a number from 0 to 1000000, not 'inf'"),
    (["train", "--weight-decay", "1e30"], "--weight-decay is a number from 0 to 1000000, not '1e30'"),
    (["train", "--momentum", "1", "--model", "lenet"], "--momentum is a number from 0 to less than 1, not 1"),
    (["feed", "bench", "--size", "0", "."], "--size is a whole number from 1 to 16384"),
    (["serve", "--port", "70000"], "--port is a whole number from 0 to 65535"),
    (["report", "--format", ""], "--format is given nothing"),
    (["report", "--format="], "--format is given nothing"),
    (["report", "--json="], "--json is given nothing"),
    (["report", "--json", "--format", "html"], "--json and --format html"),
    (["report", "--json=a.json", "-o", "b.json"], "both name the file"),
    (["devmem", "replay", "--card", "1MiB", "x"], "2.00 MiB at least"),
    (["devmem", "limit", "8gx", "--", "touch", "ran"], "8gx"),
])  # fmt: skip
def test_what_no_option_takes_is_refused_with_what_it_takes(flatout, tmp_path, words, said):
    done = call(flatout, *words, cwd=tmp_path)
    assert done.returncode == 2 and said.lower() in done.stderr.lower(), done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, value, said", [("RATE", "abc", "a number from 0.1 to 1000, not 'abc'"), ("QUIET", "perhaps", "1 or 0, not 'perhaps'")])
def test_a_wrong_variable_is_named(flatout, tmp_path, name, value, said):
    done = call(flatout, "run", "--", "touch", "ran", cwd=tmp_path, env={**os.environ, f"FLATOUT_{name}": value})
    assert done.returncode == 2 and f"the variable FLATOUT_{name} is {said}" in done.stderr
    flag = {"RATE": ["--rate", "20"], "QUIET": ["--quiet"]}[name]
    done = call(flatout, "run", *flag, "--", "true", cwd=tmp_path, env={**os.environ, f"FLATOUT_{name}": value})
    assert done.returncode == 0, "the flag beats it"


def test_numbers_are_read_as_people_write_them(flatout, tmp_path):
    for steps in ("3", "3.0", "3e0"):
        done = call(flatout, "train", "--steps", steps, "--samples", "64", "--json")
        assert json.loads(done.stdout)["steps"] == 3, done.stderr


@pytest.mark.parametrize("size", ["8gb", "8g", "8GiB", "8gib", "8G"])
def test_units_are_known_in_any_case(flatout, size):
    done = call(flatout, "devmem", "limit", size, "--", "true")
    assert "neither a size" not in done.stderr and done.returncode != 2


# ---- files that are written ----


def test_json_to_a_file_is_written_by_every_command(flatout, tmp_path, recorded, commands):
    trace = recorded / "flatout-runs/latest/trace.json.gz"
    (tmp_path / "log").write_text("RuntimeError: CUDA out of memory\n")
    (tmp_path / "memory.jsonl").write_text('{"op":"meta","name":"x"}\n{"op":"a","id":1,"size":4096}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data/picture.jpg").write_bytes(b"\xff\xd8\xff")
    run = recorded / "flatout-runs/latest"
    words = {
        "report": [run], "compare": [run, run], "merge": [run], "trace summary": [trace], "trace diff": [trace, trace],
        "trace convert": [trace, "-o", "out.pftrace"], "trace slice": [trace, "--from", "1", "-o", "cut.json"], "check": [],
        "explain": ["log"], "cache status": ["log"], "cache warm": ["log"], "cache drop": ["log"], "devmem replay": ["memory.jsonl"],
        "devmem explain": ["log"], "feed verify": ["data"], "top": ["--delay", "0.1"], "train": ["--steps", "3", "--samples", "64"],
    }  # fmt: skip
    elsewhere = {"run", "attach", "fix", "heap", "serve", "feed bench", "feed pack", "feed index", "devmem batch"}
    with_json = {" ".join(w) for w in commands if "\n  --json " in call(flatout, *w, "--help").stdout}
    assert with_json == set(words) | elsewhere
    for command, rest in words.items():
        done = call(flatout, *command.split(), f"--json={tmp_path}/out.json", *rest, cwd=tmp_path, stdin=subprocess.DEVNULL)
        assert done.stdout == "", (command, done.stdout, done.stderr)
        assert json.loads((tmp_path / "out.json").read_text()) is not None, command
        (tmp_path / "out.json").unlink()


def test_a_dump_to_a_file_is_written_too(flatout, tmp_path):
    done = call(flatout, "attach", str(os.getpid()), "--dump", "--json=dump.json", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert json.loads((tmp_path / "dump.json").read_text())["threads"]


THREADS = """
#include <thread>
#include <unistd.h>
volatile double value = 1;
__attribute__((noinline)) void spins_here() { for (;;) value = value * 1.01 + 1; }
__attribute__((noinline)) void sleeps_here() { for (;;) pause(); }
int main() {
  std::thread spinning(spins_here), sleeping(sleeps_here);
  write(1, "ready", 5);
  sleeping.join();
}
"""


def test_a_dump_shows_the_stacks_of_native_threads(flatout, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("lacks g++")
    (tmp_path / "threads.cc").write_text(THREADS)
    subprocess.run(["g++", "-g", "-O1", "-pthread", "threads.cc", "-o", "threads"], cwd=tmp_path, check=True, capture_output=True)
    with subprocess.Popen([tmp_path / "threads"], stdout=subprocess.PIPE) as job:
        try:
            assert job.stdout.read(5) == b"ready"
            done = call(flatout, "attach", job.pid, "--dump", "--json")
        finally:
            job.kill()
    assert done.returncode == 0, done.stderr
    seen = [{f["function"] for f in thread["frames"]} for thread in json.loads(done.stdout)["threads"]]
    assert len(seen) == 3
    assert sum("main" in functions for functions in seen) == 1, seen
    assert sum("sleeps_here" in functions for functions in seen) == 1, seen
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    if os.geteuid() == 0 or (paranoid.exists() and int(paranoid.read_text()) <= 2):  # a thread that runs is sampled
        assert sum("spins_here" in functions for functions in seen) == 1, seen


def test_a_server_tells_its_address_at_once(flatout, tmp_path):
    (tmp_path / "runs").mkdir()
    server = subprocess.Popen([flatout, "serve", "runs", "--port", "0", "--json=url.json"], cwd=tmp_path)
    end = time.monotonic() + 60
    while not (tmp_path / "url.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    told = json.loads((tmp_path / "url.json").read_text())
    server.terminate()
    assert server.wait(60) == 0 and told["port"] > 0


def test_a_failed_command_leaves_the_older_file(flatout, tmp_path):
    (tmp_path / "out.json").write_text("older")
    assert call(flatout, "report", "nothing", "--json=out.json", cwd=tmp_path).returncode == 1
    assert (tmp_path / "out.json").read_text() == "older"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("words, code", [
    (["run", "--json=FILE", "--", "touch", "ran"], 125), (["heap", "--json=FILE", "--", "touch", "ran"], 125),
    (["fix", "--json=FILE", "--", "touch", "ran"], 1), (["check", "--json=FILE"], 1), (["report", "-o", "FILE"], 1),
    (["devmem", "replay", "--html", "FILE", "x"], 1), (["train", "--steps", "1", "--checkpoint", "FILE"], 1),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_before_anything_else(flatout, tmp_path, words, code):
    (tmp_path / "file").write_text("")
    for path, said in (("/nonexistent/v.json", "there is no folder /nonexistent"), (str(tmp_path), "it is a folder"), ("file/x", "Not a directory")):
        done = call(flatout, *(w.replace("FILE", path) for w in words), cwd=tmp_path)
        assert done.returncode == code and f"cannot write {path}: " in done.stderr, done.stderr
        assert said in done.stderr or "is no folder" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists() and ".tmp" not in done.stderr


def test_a_file_that_was_asked_for_has_the_modes_of_the_umask(flatout, tmp_path, recorded):
    old = os.umask(0o022)
    try:
        (tmp_path / "private.json").touch(0o600)
        for name in ("r.json", "private.json"):
            assert call(flatout, "report", recorded / "flatout-runs/latest", "-o", tmp_path / name).returncode == 0
        assert call(flatout, "run", "--quiet", f"--json={tmp_path}/v.json", "--out", tmp_path / "run", "--", "true").returncode == 0
        assert call(flatout, "trace", "report", recorded / "flatout-runs/latest", "-o", tmp_path / "page.html").returncode == 0
    finally:
        os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes == {"r.json": 0o644, "private.json": 0o600, "v.json": 0o644, "run": 0o700, "page.html": 0o644}


@pytest.mark.parametrize("name, begin", [("r.html", "<!doctype html"), ("r.json", "{"), ("r.svg", "<svg"), ("r.speedscope.json", "{"), ("r.txt", "")])
def test_a_report_has_the_format_of_its_name(flatout, tmp_path, recorded, name, begin):
    assert call(flatout, "report", recorded / "flatout-runs/latest", "-o", tmp_path / name).returncode == 0
    text = (tmp_path / name).read_text()
    assert begin in text[:200].lower() and ("$schema" in text) == name.endswith(".speedscope.json")
    assert text.startswith(("{", "<")) == (name != "r.txt")


def test_a_trace_is_not_written_in_a_format_that_nobody_asked_for(flatout, tmp_path, recorded):
    trace = recorded / "flatout-runs/latest/trace.json.gz"
    done = call(flatout, "trace", "convert", trace, "-o", tmp_path / "o.xyz")
    assert done.returncode == 2 and "--format" in done.stderr and not list(tmp_path.iterdir())
    assert call(flatout, "trace", "convert", trace, "-o", tmp_path / "o.xyz", "--format", "chrome").returncode == 0
    assert call(flatout, "trace", "convert", trace, "-o", tmp_path / "plain").returncode == 0


# ---- what is read ----


def test_a_run_is_found_by_what_people_call_it(flatout, recorded, tmp_path):
    last = json.loads(call(flatout, "report", "--json", cwd=recorded).stdout)
    for name in ("latest", "flatout-runs", "flatout-runs/latest", recorded / "flatout-runs"):
        done = call(flatout, "report", name, "--json", cwd=recorded)
        assert done.returncode == 0 and json.loads(done.stdout) == last, done.stderr
    assert call(flatout, "compare", "flatout-runs", "latest", cwd=recorded).returncode == 0
    gone = call(flatout, "report", "nope", cwd=recorded)
    assert gone.returncode == 1 and "there is no folder nope" in gone.stderr and "flatout-runs" in gone.stderr
    (tmp_path / "other").mkdir()
    other = call(flatout, "report", "other", cwd=tmp_path)
    assert other.returncode == 1 and "other is not a run folder" in other.stderr and "flatout run --" in other.stderr
    assert "flatout run --" in call(flatout, "report", cwd=tmp_path).stderr
    (tmp_path / "other/one").mkdir()
    for name in ("series.bin", "events.bin"):
        (tmp_path / "other/one" / name).write_bytes(b"")
    assert "flatout report other/one" in call(flatout, "report", "other", cwd=tmp_path).stderr


def test_one_bad_memory_trace_does_not_hide_the_others(flatout, tmp_path):
    (tmp_path / "good.jsonl").write_text('{"op":"meta","name":"good"}\n{"op":"a","id":1,"size":4096}\n')
    (tmp_path / "bad").write_text("nonsense")
    done = call(flatout, "devmem", "replay", "--json", "bad", "good.jsonl", "gone", cwd=tmp_path)
    assert done.returncode == 1 and "bad" in done.stderr and "gone" in done.stderr
    assert {r["trace"] for r in json.loads(done.stdout)} == {"good"}
    assert call(flatout, "devmem", "replay", "--json", "bad", cwd=tmp_path).returncode == 1


def test_a_check_of_nothing_does_not_pass(flatout, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in ("empty", "gone"):
        for more in ([], ["--fail-on", "any"]):
            assert call(flatout, "feed", "verify", *more, path, cwd=tmp_path).returncode == 1


def test_who_reads_from_a_terminal_says_so(flatout):
    for words in (["explain"], ["devmem", "explain"]):
        pid, master = pty.fork()
        if pid == 0:
            os.execv(flatout, [flatout, *words])
        shown = b""
        while b"Ctrl-D" not in shown and select.select([master], [], [], 30)[0]:
            shown += os.read(master, 4096)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)
        assert b"from standard input; Ctrl-D ends it" in shown


# ---- the run folder ----


def test_that_an_older_run_is_replaced_is_said(flatout, tmp_path):
    assert "replaced" not in call(flatout, "run", "--out", "x", "--", "true", cwd=tmp_path).stderr
    assert "is replaced" in call(flatout, "run", "--out", "x", "--", "true", cwd=tmp_path).stderr
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "thesis.tex").write_text("")
    assert call(flatout, "run", "--out", "y", "--", "true", cwd=tmp_path).returncode == 125


def test_a_folder_that_cannot_be_made_is_told_with_its_reason(flatout, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = call(flatout, "run", "--out", "train.py", "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 125 and "train.py: it is a file" in done.stderr
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("needs root and setpriv for an ordinary user beside")
    with tempfile.TemporaryDirectory() as closed:  # pytest's folders are its user's alone
        os.chmod(closed, 0o755)
        shutil.copy(flatout, closed)
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", f"{closed}/flatout", "run"]
        done = call(*nobody, "--out", "a/b", "--", "echo", "ran", cwd=closed)
        assert done.returncode == 125 and "Permission denied" in done.stderr and done.stdout == "", done.stderr
        done = call(*nobody, "--quiet", "--", "echo", "ran", cwd=closed, env={"PATH": os.environ["PATH"], "HOME": "/nowhere"})
    assert done.returncode == 0 and "(Permission denied)" in done.stderr and done.stdout == "ran\n", done.stderr


def test_older_runs_are_removed_aloud_and_only_where_it_is_asked_for(flatout, tmp_path):
    def count():
        return len([p for p in (tmp_path / "flatout-runs").iterdir() if p.is_dir() and not p.is_symlink()])

    for _ in range(3):
        assert "older run" not in call(flatout, "run", "--keep-runs", "0", "--keep-mb", "0", "--", "true", cwd=tmp_path).stderr
    assert count() == 3
    assert "removed 2 older runs (--keep-runs 2, " in call(flatout, "run", "--keep-runs", "2", "--", "true", cwd=tmp_path).stderr
    assert count() == 2
    assert "older run" not in call(flatout, "run", "--quiet", "--keep-runs", "1", "--", "true", cwd=tmp_path).stderr
    assert count() == 1


# ---- what is refused before the job ----


@pytest.mark.parametrize("words, said", [(["--listen", "0.0.0.0"], "without a token"), (["--token-file", "gone"], "cannot read a token"), (["--tls-cert", "c.pem"], "belong together")])
def test_a_server_that_could_not_be_started_holds_the_job_back(flatout, tmp_path, words, said):
    done = call(flatout, "run", "--serve", *words, "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and not (tmp_path / "ran").exists()


# ---- Ctrl-C ----


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("command", [["run", "--quiet"], ["heap", "--quiet"]])
def test_ctrl_c_ends_a_loop_of_the_shell(flatout, tmp_path, command):
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        script = f"for i in 1 2 3; do {flatout} {' '.join(command)} -- sh -c 'echo begin; exec sleep 60'; echo code $?; done; echo through"
        os.execvp("bash", ["bash", "-c", script])
    shown, interrupted = b"", False
    while select.select([master], [], [], 60)[0]:
        try:
            shown += os.read(master, 4096)
        except OSError:
            break
        if b"begin" in shown and not interrupted:
            time.sleep(0.3)  # the job has become sleep
            os.write(master, b"\x03")
            interrupted = True
        if shown.count(b"begin") > 1 or b"through" in shown:
            break
    _, status = os.waitpid(pid, 0) if shown.count(b"begin") == 1 else (os.kill(pid, signal.SIGKILL), 0)
    os.close(master)
    assert shown.count(b"begin") == 1 and b"through" not in shown, shown
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT
    assert command[0] != "run" or (tmp_path / "flatout-runs/latest/findings.json").exists(), "the report is written all the same"


def test_a_job_that_sends_itself_the_signal_gives_its_code(flatout, tmp_path):
    # Also where whoever started the tests has it ignored, as a shell does for what runs in the background.
    job = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)"
    assert call(flatout, "run", "--quiet", "--", sys.executable, "-c", job, cwd=tmp_path).returncode == 130

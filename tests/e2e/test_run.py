"""`flatout run` stands between a user and a job: what the user must not notice.

Drives the built program (FLATOUT_BIN, default build/release/flatout) on small jobs.
"""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from program import BIN, flatout, latest, processes_of, read_line, start, wait_until

pytestmark = pytest.mark.skipif(not os.access(BIN, os.X_OK), reason=f"{BIN} is not built")


# ---- exit codes ----


@pytest.mark.parametrize("command, code", [
    (["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["sh", "-c", "kill -TERM $$"], 143),
    (["no-such-program-here"], 127), (["/etc/passwd"], 126), (["/"], 126), (["./nothing/here"], 127)])
def test_gives_back_the_jobs_code(tmp_path, command, code):
    assert flatout("run", "--quiet", "--", *command, cwd=tmp_path).returncode == code


def test_an_interpreter_that_is_missing_is_named(tmp_path):
    (tmp_path / "job").write_text("#!/no/such/python3.99 -u\n")
    (tmp_path / "job").chmod(0o755)
    done = flatout("run", "--quiet", "--", "./job", cwd=tmp_path)
    assert done.returncode == 126 and b"its interpreter /no/such/python3.99 is not there" in done.stderr


def test_a_folder_that_another_run_records_into_is_refused(tmp_path):
    with subprocess.Popen([BIN, "run", "--quiet", "--out", "same", "--", "sh", "-c", "touch begun; read line"], cwd=tmp_path,
                          stdin=subprocess.PIPE) as first:
        assert wait_until((tmp_path / "begun").exists)
        second = flatout("run", "--quiet", "--out", "same", "--", "touch", "ran", cwd=tmp_path)
        assert second.returncode == 125, second.stderr
        assert f"same is in use: flatout with pid {first.pid} records into it".encode() in second.stderr
        assert not (tmp_path / "ran").exists()
        first.communicate(b"\n")
    assert first.returncode == 0 and json.loads((tmp_path / "same/run.json").read_text())
    assert flatout("run", "--quiet", "--out", "same", "--", "touch", "ran", cwd=tmp_path).returncode == 0


def test_a_job_that_never_started_leaves_no_run_folder(tmp_path):
    flatout("run", "--", "no-such-program-here", cwd=tmp_path)
    assert not [p for p in (tmp_path / "flatout-runs").iterdir() if p.name[0] != "."]


@pytest.mark.parametrize("args", [["run"], ["run", "--nonsense", "--", "true"], ["runn"], ["attach"], ["attach", "x"],
                                  ["report", "--format", "nonsense", "."], ["compare", "one"], []])
def test_bad_usage_is_2_with_a_way_out(tmp_path, args):
    done = flatout(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert b"flatout" in done.stderr


@pytest.mark.parametrize("word, said", [("input.decode_cpus", b"did you mean input.decode_cpu?"), ("cpu", b"cpu.gc"), ("nonsense", b"docs/findings"),
                                        ("healthy", b"any"), ("slower=5%", b"any")])
def test_a_gate_that_could_never_fire_is_refused(tmp_path, word, said):
    done = flatout("run", "--fail-on", word, "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_help_leads_with_examples(tmp_path):
    for command in ("run", "attach", "report", "compare"):
        done = flatout(command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.index(b"Examples:") < done.stdout.index(b"Options:")


@pytest.mark.parametrize("words", ["--help", "--version", "run --help", "feed --help", "feed verify --help"])
def test_help_that_cannot_be_written_is_no_success(tmp_path, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN, *words.split()], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1 and b"cannot write to standard output" in done.stderr


def test_fail_on_never_hides_the_jobs_own_failure(tmp_path):
    assert flatout("run", "--quiet", "--fail-on", "any", "--", "sh", "-c", "exit 5", cwd=tmp_path).returncode == 5


def test_works_without_the_two_dashes_and_leaves_the_jobs_options_alone(tmp_path):
    done = flatout("run", "--quiet", "echo", "--help", "-o", "--json", cwd=tmp_path)
    assert done.stdout == b"--help -o --json\n"


def test_a_script_without_its_interpreter_runs(tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = flatout("run", "--quiet", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    explicit = flatout("run", "--quiet", "--", "./train.py", cwd=tmp_path)
    assert explicit.returncode == 126 and b"python" in explicit.stderr


# ---- standard files, environment, limits ----


def test_output_is_byte_identical(tmp_path):
    data = bytes(range(256)) * 4096
    (tmp_path / "data").write_bytes(data)
    done = flatout("run", "--quiet", "--", "sh", "-c", "cat data; cat data >&2", cwd=tmp_path)
    assert done.stdout == data and done.stderr == data


def test_standard_input_reaches_the_job(tmp_path):
    assert flatout("run", "--quiet", "--", "cat", cwd=tmp_path, input=b"a\0b\n").stdout == b"a\0b\n"


SHOW = ("import os,resource,signal,sys;"
        "print(sorted(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/'+f)),"
        "[resource.getrlimit(getattr(resource,n)) for n in dir(resource) if n.startswith('RLIMIT_')],"
        "sorted(signal.pthread_sigmask(signal.SIG_BLOCK,[])),"
        "[l for l in open('/proc/self/status') if l.startswith(('SigBlk','SigIgn','NoNewPrivs','Seccomp:'))],"
        "os.getsid(0),os.nice(0),os.sched_getscheduler(0),os.getcwd(),os.umask(0))")


def test_the_job_finds_what_it_would_find_without_us(tmp_path):
    command = [sys.executable, "-S", "-c", SHOW]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    ours = flatout("run", "--quiet", "--", *command, cwd=tmp_path)
    assert ours.stdout == plain.stdout


def test_only_our_variables_are_added(tmp_path):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "/mine", "X": "1"}
    done = flatout("run", "--quiet", "--", "env", cwd=tmp_path, env=env)
    got = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    got.pop("_", None)
    assert set(got) - set(env) <= {"FLATOUT_SOCKET", "FLATOUT_AGENT", "FLATOUT_RUN_DIR", "FLATOUT_FAULTS"}
    assert got["X"] == "1" and got["PATH"] == env["PATH"] and got["PYTHONPATH"].split(":")[-1] == "/mine"
    bare = flatout("run", "--quiet", "--no-agent", "--", "env", cwd=tmp_path, env=env).stdout.decode()
    assert "FLATOUT_SOCKET" not in bare and "PYTHONPATH=/mine\n" in bare


def test_with_hardly_a_process_more_allowed_the_job_runs_or_it_is_said_that_it_cannot():
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("prlimit") is None:
        pytest.skip("lacks root, setpriv and prlimit to be a user with a limit")
    outcomes = set()
    for most in range(1, 11):
        words = ["setpriv", "--reuid", "61917", "--clear-groups", "prlimit", f"--nproc={most}", BIN, "run", "--quiet", "--", "sh", "-c", "echo out; exec sleep 0.2"]
        done = subprocess.run(words, cwd="/", capture_output=True, timeout=120)
        outcomes.add(done.returncode)
        assert (done.returncode, done.stdout) in [(0, b"out\n"), (125, b"")], (most, done)
    assert outcomes == {0, 125}, "from too few processes to enough"


def test_closed_standard_files_stay_closed(tmp_path):
    script = f'exec <&- >&- 2>&-; exec "{BIN}" run --quiet -- sh -c \'ls -l /proc/self/fd > "{tmp_path}/fds" 2>/dev/null\''
    assert subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=60).returncode == 0
    listed = (tmp_path / "fds").read_text()
    assert not re.search(r" 0 -> (?!.*/proc)", listed) or "/dev/null" not in listed
    for block in (latest(tmp_path) / "series.bin", latest(tmp_path) / "events.bin"):
        assert block.read_bytes()[:4] in (b"FLBK", b""), "nothing of the job may land in our files"


def test_json_goes_to_stdout_and_the_jobs_output_to_stderr(tmp_path):
    done = flatout("run", "--json", "--quiet", "--", "sh", "-c", "echo job", cwd=tmp_path)
    assert json.loads(done.stdout)["schema"] == 1
    assert b"job\n" in done.stderr
    done = flatout("run", "--json=verdict.json", "--quiet", "--", "sh", "-c", "echo job", cwd=tmp_path)
    assert done.stdout == b"job\n"
    assert json.loads((tmp_path / "verdict.json").read_text())["schema"] == 1


def test_a_closed_stderr_pipe_does_not_hurt(tmp_path):
    read, write = os.pipe()
    os.close(read)
    job = subprocess.Popen([BIN, "run", "--", "sh", "-c", "sleep 0.2; exit 3"], cwd=tmp_path, stderr=write, stdout=subprocess.DEVNULL)
    os.close(write)
    assert job.wait(60) == 3


# ---- signals ----

COUNT = """
import signal, sys, time
got = []
def handler(n, f): got.append(n)
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH): signal.signal(s, handler)
print('ready', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and len(got) < int(sys.argv[1]): time.sleep(0.02)
time.sleep(0.3)
print(got, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH])
def test_a_signal_to_flatout_alone_is_passed_on_once(tmp_path, number):
    job = start(tmp_path, sys.executable, "-c", COUNT, "1", start_new_session=True)
    assert read_line(job.stdout) == "ready"
    os.kill(job.pid, number)
    assert read_line(job.stdout) == f"[{int(number)}]"
    assert job.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_group_reaches_the_job_once(tmp_path, number):
    job = start(tmp_path, sys.executable, "-c", COUNT, "1", start_new_session=True)
    assert read_line(job.stdout) == "ready"
    os.killpg(job.pid, number)
    assert read_line(job.stdout) == f"[{int(number)}]"
    assert job.wait(60) == 0


def test_a_terminated_job_still_gets_its_report(tmp_path):
    job = start(tmp_path, "sh", "-c", "echo ready; exec sleep 60", start_new_session=True)
    assert read_line(job.stdout) == "ready"
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(60) == 143
    assert json.loads((latest(tmp_path) / "findings.json").read_text())["schema"] == 1


def on_terminal(tmp_path, command, talk, env=None):
    """Runs `command` with a terminal of its own as its session's controlling one; gives all that was shown."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        for end in (signal.SIGINT, signal.SIGQUIT):  # a shell's background commands ignore them
            signal.signal(end, signal.SIG_DFL)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **(env or {})})
    shown = bytearray()

    def read(until=None, limit=30.0):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if until is not None and until in shown:
                return True
            ready, _, _ = select.select([master], [], [], 0.05)
            if ready:
                try:
                    data = os.read(master, 65536)
                except OSError:
                    return until is None or until in shown
                if not data:
                    return False
                shown.extend(data)
        return False

    try:
        talk(pid, master, read)
        read(limit=20)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(master)
    return bytes(shown), os.waitstatus_to_exitcode(status)


def test_ctrl_c_reaches_the_job_once_and_flatout_reports(tmp_path):
    def talk(pid, master, read):
        assert read(b"ready")
        os.write(master, b"\x03")

    shown, code = on_terminal(tmp_path, [BIN, "run", "--", sys.executable, "-c", COUNT, "1"], talk)
    assert b"[2]" in shown and code == 0
    assert (latest(tmp_path) / "findings.json").exists()


def test_ctrl_backslash_ends_the_job_and_not_flatout(tmp_path):
    def talk(pid, master, read):
        assert read(b"ready")
        os.write(master, b"\x1c")

    _, code = on_terminal(tmp_path, [BIN, "run", "--quiet", "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 60"], talk)
    assert code == 128 + signal.SIGQUIT
    assert (latest(tmp_path) / "findings.json").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash for job control")
def test_ctrl_z_and_fg_work_and_leave_a_gap(tmp_path):
    def talk(pid, master, read):
        os.write(master, b"PS1='$ '\n")
        os.write(master, f"{BIN} run --quiet -- sh -c 'echo rea''dy; sleep 2; echo do''ne'\n".encode())
        assert read(b"ready")
        os.write(master, b"\x1a")
        assert read(b"Stopped")
        time.sleep(1.5)
        os.write(master, b"fg\n")
        assert read(b"done")
        os.write(master, b"echo code=$?; exit\n")
        assert read(b"code=0")

    on_terminal(tmp_path, ["bash", "--norc", "-i"], talk)
    # A gap packet (type 42) of more than a second stands in events.bin.
    data = (latest(tmp_path) / "events.bin").read_bytes()
    gaps = [m.start() for m in re.finditer(re.escape((40).to_bytes(4, "little") + (42).to_bytes(2, "little")), data)]
    lengths = [int.from_bytes(data[g + 32:g + 40], "little") - int.from_bytes(data[g + 24:g + 32], "little") for g in gaps]
    assert any(1e9 < length < 60e9 for length in lengths), lengths


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_a_keyboard_interrupt_ends_python_as_without_us(tmp_path, imports):
    """CPython dies of SIGINT then, unless something evaluates text in its excepthook."""
    if imports and subprocess.run([sys.executable, "-c", imports], capture_output=True).returncode != 0:
        pytest.skip("this Python has no torch")
    (tmp_path / "ki.py").write_text(f"{imports}\ndef inner():\n    raise KeyboardInterrupt\ninner()\n")
    alone = subprocess.run([sys.executable, "ki.py"], cwd=tmp_path, capture_output=True)
    done = flatout("run", "--quiet", "--out", "ki", "--", sys.executable, "ki.py", cwd=tmp_path)
    assert alone.returncode == -signal.SIGINT and done.returncode == 128 + signal.SIGINT
    assert done.stderr == alone.stderr
    if imports:
        facts = json.loads((tmp_path / "ki" / "run.json").read_text())["facts"]
        assert facts["exception.type"] == "KeyboardInterrupt" and facts["exception.line"] == "3"


def test_a_name_that_is_no_utf8_is_the_same_everywhere(tmp_path):
    """From the command line, in stacks read from outside and in what the agent tells."""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip("this Python has no torch")
    folder = os.fsencode(tmp_path) + b"/b\xffad"
    os.mkdir(folder)
    with open(folder + b"/j.py", "w") as script:
        script.write("import time, torch\nfor _ in range(10):\n    time.sleep(0.1)\nraise ValueError\n")
    flatout("run", "--quiet", "--out", "x", "--", sys.executable, os.fsdecode(folder + b"/j.py"), cwd=tmp_path)
    for name in ("series.bin", "events.bin"):
        data = (tmp_path / "x" / name).read_bytes()
        assert set(re.findall(rb"/b([^/]{1,4})ad/j.py", data)) == {b"\xff"}, name


def test_timeout_of_coreutils_ends_the_job(tmp_path):
    done = subprocess.run(["timeout", "2", BIN, "run", "--quiet", "--", "sleep", "60"], cwd=tmp_path, timeout=60)
    assert done.returncode == 124
    assert wait_until(lambda: not [p for p in processes_of("sleep 60") if os.readlink(f"/proc/{p}/cwd") == str(tmp_path)])


# ---- the terminal ----


def test_status_line_only_in_silence_and_gone_before_the_end(tmp_path):
    def talk(pid, master, read):
        assert read(b"first")
        assert read(b"\x1b[1E", 30), "two seconds of silence: a status line"
        assert read(b"last")

    shown, code = on_terminal(tmp_path, [BIN, "run", "--", "sh", "-c", "echo first; sleep 6; echo la''st"], talk)
    assert code == 0
    assert shown.index(b"first") < shown.index(b"\x1b[1E") < shown.index(b"last")
    assert b"\x1b[J" in shown or b"\x1b[2K" in shown[shown.rindex(b"\x1b[1E"):]


SLEEPY_LOADER = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Remote(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i):
        time.sleep(PAUSE)
        return torch.randn(64)

torch.set_num_threads(1)
net = torch.nn.Linear(64, 64)
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
end = time.monotonic() + 25
for number, x in enumerate(DataLoader(Remote(), batch_size=2)):
    sgd.zero_grad()
    net(x).square().mean().backward()
    sgd.step()
    with open("steps", "w") as steps:
        print(number + 1, file=steps)
    if os.path.exists("enough") or time.monotonic() > end:
        break
"""


@pytest.mark.parametrize("pause, first, last", [(0.05, 5, 30), (0.75, 5, 10)])
def test_the_first_verdict_comes_while_the_job_trains(tmp_path, job_python, pause, first, last):
    """By step 30 or 10 s after the first step, and one reading of everything more; never before step 5."""
    (tmp_path / "train.py").write_text(SLEEPY_LOADER.replace("PAUSE", str(pause)))
    seen = []

    def talk(pid, master, read):
        assert read(b"stall.idle_wait", 40)
        seen.append(int((tmp_path / "steps").read_text()))
        (tmp_path / "enough").touch()

    shown, code = on_terminal(tmp_path, [BIN, "run", "--", job_python, "train.py"], talk)
    assert code == 0 and b"stall.idle_wait" in shown
    assert first <= seen[0] <= last + max(1, 2 / (2 * pause)), seen


# Title; a line above the job's (its text in the group); the line in silence and its end.
OURS = re.compile(rb"\x1b\[2[23];0t|\x1b\]2;[^\x07]*\x07|\x1bD\x1bM\x1b7\r\x1b\[L(.*?)\x1b8\x1b\[B"
                  rb"|(?:\x1bD\x1bM)?\x1b7\x1b\[1E\x1b\[2K.*?\x1b8|\x1b\[J")


def test_a_job_that_prints_every_step_gets_title_and_first_verdict(tmp_path, job_python):
    """Both stand between its lines, which are all there, and nothing of it comes twice."""
    script = SLEEPY_LOADER.replace("PAUSE", "0.05").replace("    with open", '    print("step", number + 1, end=" ", flush=True)\n    print("done", flush=True)\n    with open')
    (tmp_path / "train.py").write_text(script)

    def talk(pid, master, read):
        assert read(b"\x1b[L", 40), "one line with the first verdict"
        assert read(b"stall.idle_wait", 20)
        time.sleep(3)  # no second one
        (tmp_path / "enough").touch()

    shown, code = on_terminal(tmp_path, [BIN, "run", "--", job_python, "train.py"], talk)
    assert code == 0
    verdicts = [m[1] for m in OURS.finditer(shown) if m[1] is not None]
    assert len(verdicts) == 1 and b"stall.idle_wait" in verdicts[0], verdicts
    assert re.search(rb"\x1b\]2;[^\x07]*steps/s[^\x07]*\x07", shown), "the title tells the speed"
    steps = int((tmp_path / "steps").read_text())
    job = b"".join(b"step %d done\r\n" % i for i in range(1, steps + 1))
    assert job in OURS.sub(b"", shown)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}])
def test_dumb_terminals_get_nothing(tmp_path, env):
    shown, _ = on_terminal(tmp_path, [BIN, "run", "--", "sh", "-c", "echo first; sleep 3.5; echo last"], lambda *_: None, env)
    assert b"\x1b" not in shown


def test_busy_output_is_never_disturbed(tmp_path):
    script = "for i in 1 2 3 4 5 6 7; do echo line $i; sleep 0.5; done"
    shown, _ = on_terminal(tmp_path, [BIN, "run", "--quiet", "--", "sh", "-c", script], lambda *_: None)
    assert shown == b"".join(b"line %d\r\n" % i for i in range(1, 8))


# ---- the run folder ----


def test_run_folder_is_private_and_complete(tmp_path):
    flatout("run", "--quiet", "--", sys.executable, "-c", "sum(range(10**6))", cwd=tmp_path)
    folder = latest(tmp_path)
    assert (folder.resolve().stat().st_mode & 0o777) == 0o700
    names = {p.name for p in folder.iterdir()}
    assert {"series.bin", "events.bin", "run.json", "findings.json", ".gitignore"} <= names
    assert re.fullmatch(r"\d{8}-\d{6}-python-.+-\d+", folder.resolve().name)
    assert not [n for n in names if "tmp" in n]


def test_numbers_beyond_all_bounds_keep_every_run(tmp_path):
    for _ in range(3):
        done = flatout("run", "--quiet", "--keep-runs", "1e30", "--keep-mb", "inf", "--", "true", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len([p for p in (tmp_path / "flatout-runs").iterdir() if p.is_dir() and not p.is_symlink()]) == 3


def test_json_goes_through_a_link_and_a_pipe(tmp_path):
    """As root a device would have been replaced by a file."""
    (tmp_path / "link.json").symlink_to("real.json")
    assert flatout("run", "--quiet", "--json=link.json", "--", "true", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "verdict" in json.loads((tmp_path / "real.json").read_text())
    piped = flatout("report", "--format", "json", "-o", "/dev/stdout", cwd=tmp_path)
    assert "verdict" in json.loads(piped.stdout), piped.stderr


def test_secrets_do_not_reach_the_run_folder(tmp_path):
    env = {**os.environ, "HF_TOKEN": "hf_AbCd1234EfGh5678", "OMP_NUM_THREADS": "3", "NCCL_TOKEN": "verysecret1"}
    flatout("run", "--quiet", "--", "sh", "-c", "sleep 0.4", "--password=verysecret2", "https://me:verysecret3@host/", cwd=tmp_path, env=env)
    everything = b"".join(p.read_bytes() for p in latest(tmp_path).iterdir())
    for secret in (b"hf_AbCd1234EfGh5678", b"verysecret1", b"verysecret2", b"verysecret3"):
        assert secret not in everything
    assert b"OMP_NUM_THREADS" in everything


def test_an_unwritable_folder_falls_back_to_the_state_home(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere: a read-only folder needs an ordinary user")
    here = tmp_path / "here"
    here.mkdir(mode=0o500)
    done = flatout("run", "--", "true", cwd=here, env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")})
    assert done.returncode == 0 and b"state" in done.stderr
    assert list((tmp_path / "state").rglob("series.bin"))


def test_a_folder_that_is_gone_does_not_stop_the_job(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    script = f'cd "{here}" && rmdir "{here}" && exec "{BIN}" run --quiet -- sh -c "exit 4"'
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    assert subprocess.run(["sh", "-c", script], env=env, timeout=60).returncode == 4


def test_a_full_disk_is_one_message_and_the_job_goes_on(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        done = flatout("run", "--out", str(full / "run"), "--", sys.executable, "-c", "import time; time.sleep(5); print('ok')", cwd=tmp_path)
        assert done.returncode == 0 and done.stdout == b"ok\n"
        assert done.stderr.count(b"No space left") == 1, done.stderr
    finally:
        subprocess.run(["umount", "-l", str(full)], check=False)


def test_a_killed_run_leaves_a_readable_folder_and_the_job_alone(tmp_path):
    job = start(tmp_path, sys.executable, "-c", "import time\nprint('ready', flush=True)\ntime.sleep(4)\nprint('done', flush=True)")
    assert read_line(job.stdout) == "ready"
    time.sleep(2.5)
    os.kill(job.pid, signal.SIGKILL)
    assert read_line(job.stdout) == "done", "the job runs on"
    job.wait(60)
    report = flatout("report", str(latest(tmp_path)), cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert b"python" in report.stdout
    sockets = pathlib.Path("/proc/net/unix").read_text()
    assert f"@flatout-{job.pid}-" not in sockets


# ---- descendants ----


def test_a_daemon_that_outlives_the_job_is_named_and_left_alone(tmp_path):
    script = "setsid sleep 61 >/dev/null 2>&1 & sleep 0.5"
    done = flatout("run", "--", "sh", "-c", script, cwd=tmp_path)
    left = [p for p in processes_of("sleep 61")]
    try:
        assert done.returncode == 0
        assert left and any(str(p).encode() in done.stderr for p in left), done.stderr
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def test_a_job_that_makes_itself_a_daemon_at_once_is_named(tmp_path):
    script = ("import os, sys, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
              "for fd in (0, 1, 2): os.close(fd)\nopen('daemon', 'w').write(str(os.getpid()))\ntime.sleep(30)")
    done = flatout("run", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert wait_until(lambda: (tmp_path / "daemon").exists() and (tmp_path / "daemon").read_text())
    pid = int((tmp_path / "daemon").read_text())
    try:
        assert str(pid).encode() in done.stderr, done.stderr
    finally:
        os.kill(pid, signal.SIGKILL)


def test_how_children_end_is_known(tmp_path):
    # The child is reaped by its own parent, so only the kernel can tell us.
    code = ("import subprocess, time\n"
            "p = subprocess.Popen(['sh', '-c', 'sleep 1.5; kill -11 $$'])\n"
            "p.wait()\ntime.sleep(0.5)\n")
    flatout("run", "--quiet", "--", sys.executable, "-c", code, cwd=tmp_path)
    run = json.loads((latest(tmp_path) / "run.json").read_text())
    ends = {p.get("name"): p for p in run["processes"]}
    assert "11" in json.dumps(ends.get("sh")), ends


def test_nothing_of_ours_is_left_behind(tmp_path):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    job = start(tmp_path, "sh", "-c", "sleep 0.3")
    job.wait(60)
    assert not pathlib.Path(f"/proc/{job.pid}").exists()
    assert f"@flatout-{job.pid}-" not in pathlib.Path("/proc/net/unix").read_text()
    if before:
        assert set(os.listdir("/dev/shm")) <= before | {n for n in os.listdir("/dev/shm") if not n.startswith("flatout")}


@pytest.mark.parametrize("script", ["true", "exec sleep 0.2", "sleep 0.3 & exit 0", "cd / && exec setsid sleep 0.3", "exec >&- 2>&- <&-; sleep 0.2",
                                    "(exec sh -c 'exec sh -c \"exit 0\"')"])
def test_odd_jobs(tmp_path, script):
    assert flatout("run", "--", "sh", "-c", script, cwd=tmp_path).returncode == 0


def test_flatout_within_flatout(tmp_path):
    done = flatout("run", "--quiet", "--out", "outer", "--", "sh", "-c", f'"{BIN}" run --quiet --out inner -- sh -c "echo in; exit 9"', cwd=tmp_path)
    assert (done.returncode, done.stdout) == (9, b"in\n")
    for name in ("outer", "inner"):
        assert (tmp_path / name / "findings.json").exists()


def test_thousands_of_threads(tmp_path):
    code = ("import threading, time\n"
            "threading.stack_size(64 << 10)\n"
            "go = threading.Event()\n"
            "n = 0\n"
            "try:\n"
            "    for _ in range(5000): threading.Thread(target=go.wait, daemon=True).start(); n += 1\n"
            "except RuntimeError: pass\n"
            "time.sleep(3); print(n > 1000)\ngo.set()\n")
    done = flatout("run", "--quiet", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"True\n"), done.stderr


# ---- report, compare ----


def test_report_and_compare_read_run_folders(tmp_path):
    for name in ("one", "two"):
        flatout("run", "--quiet", "--out", name, "--", sys.executable, "-c", "import time; time.sleep(0.5)", cwd=tmp_path)
    for form in ("text", "json", "html", "svg", "speedscope"):
        done = flatout("report", "one", "--format", form, "-o", f"x.{form}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"x.{form}").stat().st_size > 0
    assert json.loads(flatout("report", "one", "--json", cwd=tmp_path).stdout)["schema"] == 1
    done = flatout("compare", "one", "two", "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    assert flatout("report", "nowhere", cwd=tmp_path).returncode == 1


def test_a_recording_that_lost_a_file_is_no_healthy_run(tmp_path):
    """Without its events a run would look as one in which nothing happened."""
    flatout("run", "--quiet", "--out", "whole", "--", sys.executable, "-c", "import time; time.sleep(3)", cwd=tmp_path)
    for name in ("events.bin", "series.bin"):
        for what in ("gone", "empty", "cut", "random"):
            copy = tmp_path / f"{what}-{name}"
            shutil.copytree(tmp_path / "whole", copy)
            if what == "gone":
                (copy / name).unlink()
            else:
                (copy / name).write_bytes({"empty": b"", "cut": (copy / name).read_bytes()[:100], "random": os.urandom(20000)}[what])
            before = {p.name: p.read_bytes() for p in copy.iterdir()}
            done = flatout("report", str(copy), cwd=tmp_path)
            assert done.returncode == 1 and b"the recording is incomplete" in done.stderr and name.encode() in done.stderr
            assert done.stdout == b"" and {p.name: p.read_bytes() for p in copy.iterdir()} == before


def test_a_recording_that_is_damaged_in_part_says_so_and_has_no_verdict(tmp_path):
    busy = "import time\nend = time.time() + 3\nwhile time.time() < end: pass"
    flatout("run", "--quiet", "--out", "x", "--", sys.executable, "-c", busy, cwd=tmp_path)
    events = tmp_path / "x" / "events.bin"
    events.write_bytes(events.read_bytes()[:-10])
    done = flatout("report", "x", cwd=tmp_path)
    assert done.returncode == 0 and b"recording is incomplete" in done.stdout and b"ealthy" not in done.stdout
    assert json.loads(flatout("report", "x", "--json", cwd=tmp_path).stdout)["verdict"] == "none"


def test_a_damaged_recording_leaves_what_was_made_of_the_whole_one(tmp_path):
    flatout("run", "--quiet", "--out", "x", "--", sys.executable, "-c", "import time; time.sleep(3)", cwd=tmp_path)
    events = tmp_path / "x" / "events.bin"
    events.write_bytes(events.read_bytes()[:-10])
    before = {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()}
    assert flatout("report", "x", cwd=tmp_path).returncode == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()} == before


def test_runs_that_are_no_ranks_are_neither_merged_nor_let_through(tmp_path):
    for name in ("one", "two"):
        flatout("run", "--quiet", "--out", name, "--", sys.executable, "-c", "import time; time.sleep(1)", cwd=tmp_path)
    done = flatout("merge", "one", "two", "-o", "both", cwd=tmp_path)
    assert done.returncode == 2 and b"these are not ranks of one job: one had ended when two began" in done.stderr
    assert not (tmp_path / "both").exists()
    # What cannot be compared must not pass a gate.
    done = flatout("compare", "one", "two", "--fail-on", "slower=5%", cwd=tmp_path)
    assert done.returncode == 1 and b"Too few steps to compare: the old run has none, the new run has none" in done.stderr
    assert flatout("compare", "one", "two", cwd=tmp_path).returncode == 0


def test_verbose_says_why_something_was_not_measured(tmp_path):
    short = flatout("run", "--out", "x", "--", sys.executable, "-c", "import time; time.sleep(1)", cwd=tmp_path).stderr
    if b"not measured" not in short:
        pytest.skip("all is measured here")
    missing = json.loads((tmp_path / "x" / "findings.json").read_text())["missing"]
    done = flatout("report", "x", "--verbose", cwd=tmp_path)
    assert b"(why: --verbose)" not in done.stdout
    assert all(m["signal"].encode() in done.stdout for m in missing) and b" (" in done.stdout.split(b"not measured: ")[1]

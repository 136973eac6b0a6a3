"""Completion in bash, zsh and fish, and the manual pages: all commands, all options, and the values that the program knows."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel


def run(flatout: str, *words: object, code: int = 0) -> str:
    done = subprocess.run([flatout, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def help_options(flatout: str, *words: str) -> list[str]:
    """The options that --help lists, each by its long name."""
    text = run(flatout, *words, "--help").split("Options:")[-1]
    return [m[1] for m in re.finditer(r"^ {2}(?:-\w, ?)?(--[a-z][a-z-]+)", text, re.M)]


def commands(flatout: str, pages: Path) -> list[tuple[str, ...]]:
    """Every command with its parts, by the manual's pages; completion and --help have to have the same."""
    run(flatout, "manual", pages)
    main = (pages / "flatout.1").read_text().replace("\\-", "-")
    names = re.findall(r"^\.BR flatout-(\S+) \(1\)", main, re.M)
    listed = re.findall(r"^  (\w+) ", run(flatout, "--help").split("Commands:")[1], re.M)
    found = [tuple(name.split("-")) for name in names]
    assert {words[0] for words in found} == set(listed) | {"manual"}
    assert all((pages / f"flatout-{name}.1").exists() for name in names)
    return found


@pytest.fixture(scope="module")
def known(flatout, tmp_path_factory) -> dict[tuple[str, ...], list[str]]:
    """The options of every command."""
    pages = tmp_path_factory.mktemp("pages")
    out = {}
    for words in commands(flatout, pages):
        out[words] = help_options(flatout, *words)
        page = (pages / f"flatout-{'-'.join(words)}.1").read_text().replace("\\-", "-")
        assert out[words] and all(option in page for option in out[words])
    return out


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a run, a log and a data set."""
    for name in ("flatout-runs/20250101-first", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "flatout-runs/20250101-first/series.bin").write_text("")
    (tmp_path / "train.log").write_text("")
    return tmp_path


def causes(flatout: str) -> list[str]:
    found = re.findall(r"^ *([a-z_]+\.[a-z0-9_]+)", run(flatout, "train", "--inject", "list"), re.M)
    assert len(found) > 10
    return found


def findings() -> list[str]:
    pages = (Path(__file__).resolve().parents[2] / "docs/findings").glob("*.*.md")
    return [page.name.removesuffix(".md") for page in pages]


# What is typed (a last word that is empty: after a blank), and what of the answer must be there, or all of it as a set.
def values(flatout: str) -> list[tuple[list[str], set[str]]]:
    return [
        (["train", "--inject", ""], {*causes(flatout), "list", "none"}),
        (["run", "--fail-on", ""], {*findings(), "any"}),
        (["feed", "verify", "--fail-on", ""], {"any"}),
        (["report", "--format", ""], {"html", "json", "svg", "speedscope", "text"}),
        (["report", "--format", "s"], {"svg", "speedscope"}),
        (["trace", "convert", "--format", ""], {"chrome", "perfetto"}),
        (["train", "--model", "res"], {"resnet20"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["cache", ""], {"status", "warm", "drop"}),
        (["cache", "wa"], {"warm"}),
        (["exp"], {"explain"}),
        (["he"], {"heap", "help"}),
        (["help", "exp"], {"explain"}),
        (["help", "explain", ""], set()),
        (["cache", "warm", "--mb"], {"--mb-per-s"}),
    ]


# ---- bash ----


@pytest.fixture
def bash(flatout, place):
    script = place / "complete.bash"
    script.write_text(run(flatout, "completion", "bash"))

    def complete(*lines: list[str]) -> list[set[str]]:
        """What is offered for each of some lines, a list of words each."""
        calls = ""
        for words in lines:
            line = " ".join(f"'{w}'" for w in ["flatout", *words])
            calls += f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _flatout; printf '%s\\n' \"${{COMPREPLY[@]}}\"; echo ----\n"
        done = subprocess.run(["bash", "-c", f"source {script}\n{calls}"], capture_output=True, text=True, check=True, cwd=place)
        assert not done.stderr
        return [set(part.split()) for part in done.stdout.split("----\n")[:-1]]

    return complete


def test_bash_knows_every_option(bash, known):
    offered = bash(*([*words, "--"] for words in known))
    for (words, options), found in zip(known.items(), offered):
        assert found == set(options), words


def test_bash_knows_values(flatout, bash):
    wanted = values(flatout)
    for (words, expected), found in zip(wanted, bash(*(words for words, _ in wanted))):
        # Also help for parts of commands.
        assert found - {"--help"} == expected, words
    assert bash(["train", "--inject", "=", "input.c"]) == [{c for c in causes(flatout) if c.startswith("input.c")}]
    assert bash(["compare", "--fail-on", ""]) == [{"slower=5%"}]


def test_bash_knows_runs_and_processes(bash):
    for words in (["report", ""], ["compare", ""], ["compare", "flatout-runs/20250101-first", ""], ["merge", ""], ["serve", ""]):
        assert bash(words) == [{"data", "flatout-runs", "flatout-runs/20250101-first"}], words
    assert bash(["report", "2025"]) == [{"flatout-runs/20250101-first"}]
    assert bash(["run", "--out", "da"]) == [{"data"}]
    assert str(os.getpid()) in bash(["top", ""])[0] & bash(["attach", ""])[0]
    # Nothing is called that is not there.
    assert bash(["--version", ""], ["--help", ""], ["nonsense", ""]) == [set()] * 3
    kernel = set()
    for statm in Path("/proc").glob("[0-9]*/statm"):
        with contextlib.suppress(OSError):  # it has ended
            if statm.read_text().startswith("0 "):
                kernel.add(statm.parent.name)
    assert not kernel & bash(["attach", ""])[0]
    # A number is the user's; files are left to the shell; behind -- stands another program.
    assert bash(["train", "--steps", ""], ["explain", ""], ["run", "--", "--ou"]) == [set()] * 3


# ---- fish ----


@pytest.fixture
def fish(flatout, place):
    if not shutil.which("fish"):
        pytest.skip("lacks fish: install the package fish")
    (place / "flatout.fish").write_text(run(flatout, "completion", "fish"))

    def complete(*lines: list[str]) -> list[set[str]]:
        calls = "".join(f"complete -C '{' '.join(['flatout', *words])}'; echo ----\n" for words in lines)
        done = subprocess.run(["fish", "--no-config", "-c", f"source {place}/flatout.fish\n{calls}"], capture_output=True, text=True,
                              check=True, cwd=place, env={**os.environ, "HOME": str(place)})
        assert not done.stderr
        return [{row.split("\t")[0] for row in part.splitlines()} for part in done.stdout.split("----\n")[:-1]]

    return complete


def test_fish_knows_every_option(fish, known):
    offered = fish(*([*words, "--"] for words in known))
    for (words, options), found in zip(known.items(), offered):
        assert {option.rstrip("=") for option in found} == set(options), words


def test_fish_knows_values(flatout, fish):
    wanted = values(flatout)
    for (words, expected), found in zip(wanted, fish(*(words for words, _ in wanted))):
        assert found == expected, words
    assert fish(["compare", "--fail-on", ""]) == [{"slower=5%"}]


def test_fish_knows_runs_processes_and_files(fish):
    for words in (["report", ""], ["compare", ""], ["merge", ""], ["serve", ""]):
        assert fish(words)[0] >= {"data/", "flatout-runs/20250101-first"}, words
        assert "train.log" not in fish(words)[0]
    assert str(os.getpid()) in fish(["top", ""])[0] & fish(["attach", ""])[0]
    assert fish(["train", "--steps", ""]) == [set()]
    assert "train.log" in fish(["explain", "tr"])[0]
    assert fish(["cache", "drop", "--mb"]) == [set()]


# ---- zsh ----


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, command: list[str], env: dict):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, env)

    def type(self, text: str, until: str) -> str:
        """What came after `text` was typed, up to `until`, a pattern."""
        os.write(self.fd, text.encode())
        seen, end = "", time.monotonic() + 60
        while not re.search(until, seen) and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.2)[0]:
                seen += os.read(self.fd, 65536).decode(errors="replace")
        assert re.search(until, seen), (text, seen)
        return seen

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def zsh_cases(flatout: str) -> list[tuple[str, str]]:
    """What is typed before a tab, and what the line becomes: where one thing fits, that; else what all that fit have in common."""
    unique = next(c for c in causes(flatout) if sum(o.startswith(c[:-1]) for o in causes(flatout)) == 1)
    return [
        ("flatout exp", "flatout explain "), ("flatout cache wa", "flatout cache warm "),
        ("flatout cache warm --mb", "flatout cache warm --mb-per-s="), ("flatout run --fail", "flatout run --fail-on="),
        ("flatout explain trai", "flatout explain train.log "), ("flatout completion z", "flatout completion zsh "),
        ("flatout report --format=sp", "flatout report --format=speedscope "), ("flatout report --format sv", "flatout report --format svg "),
        (f"flatout train --inject={unique[:-1]}", f"flatout train --inject={unique} "),
        ("flatout run --fail-on input.decode", "flatout run --fail-on input.decode_cpu "),
        ("flatout report flatout-runs/2", "flatout report flatout-runs/20250101-first"),
        ("flatout trace convert --format p", "flatout trace convert --format perfetto "),
        ("flatout run -- /bin/ech", "flatout run -- /bin/echo "),
    ]


def test_zsh_completes(flatout, place, known):
    script = run(flatout, "completion", "zsh")
    for words, options in known.items():
        part = script.split(f"    '{' '.join(words)}')\n")[1].split(" ;;\n")[0]
        assert set(re.findall(r"'\*?(--[a-z-]+)", part)) == set(options), words
    if not shutil.which("zsh"):
        pytest.skip("lacks zsh: install the package zsh")
    (place / "_flatout").write_text(script)
    shell = Shell(["zsh", "-f", "-i"], {**os.environ, "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8"})
    try:
        shell.type(f"cd {place}; fpath=({place} $fpath); autoload -Uz compinit; compinit -u -D; PS1='>'; print READY$((1))\n", "READY1")
        for typed, becomes in zsh_cases(flatout):
            shell.type(typed + "\t", re.escape(becomes[len(typed):]))
            shell.type("\x15", "")  # the line is thrown away
    finally:
        shell.close()


def test_there_are_three_shells(flatout):
    run(flatout, "completion", "tcsh", code=2)

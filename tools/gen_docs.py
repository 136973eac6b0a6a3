#!/usr/bin/env python3
"""Writes docs/signals.md, docs/metrics.md, docs/options.md and docs/commands.md from the tables in the code.

--check writes nothing and fails where a page differs from its table.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIGNAL = re.compile(r'^FLATOUT_SIGNAL\(\w+,\s*"([^"]+)",\s*"([^"]*)",\s*k(\w+),\s*k(\w+),\s*"([^"]*)"\)', re.M)
METRIC = re.compile(r'^FLATOUT_METRIC\(\w+, "([^"]+)", k(\w+), "([^"]*)", "([^"]*)"\)|^FLATOUT_SIGNAL_METRIC\(k(\w+), "([^"]+)", [^,]+, "([^"]*)"\)', re.M)
SIGNAL_ID = re.compile(r'^FLATOUT_SIGNAL\(k(\w+),\s*"[^"]+",\s*"[^"]*",\s*k(\w+),\s*k\w+,\s*"([^"]*)"\)', re.M)
OPTION = re.compile(
    r'FLATOUT_OPTION\(\s*(\w+)\s*,\s*(\w+)\s*,\s*("(?:[^"\\]|\\.)*"|[^,]+?)\s*,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', re.M)


def signals_page() -> str:
    rows = SIGNAL.findall((ROOT / "src/model/signals.def").read_text())
    lines = ["# Signals", "", "Everything that Flatout measures over time. Generated from `src/model/signals.def` by `make docs`.", "",
             "| signal | unit | kind | of | what |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {unit} | {kind.lower()} | {entity.lower()} | {text} |" for name, unit, kind, entity, text in rows]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    signals = {name: (kind, text) for name, kind, text in SIGNAL_ID.findall((ROOT / "src/model/signals.def").read_text())}
    lines = ["# Metrics", "", "What `flatout serve` tells Prometheus at `/metrics`. Generated from `src/report/metrics.def` by `make docs`.", "",
             "All but `flatout_build_info` have the label `run` and, in a job of several ranks, `rank`. In OpenMetrics the names of counters and",
             "informations are those without `_total` and `_info`; their samples are named as here.", "",
             "| metric | type | further labels | what |", "| --- | --- | --- | --- |"]
    for name, kind, labels, text, signal, signal_name, label in METRIC.findall((ROOT / "src/report/metrics.def").read_text()):
        if signal:
            kind, text = signals[signal]
            kind = kind if kind == "Counter" else "Gauge"
            name, labels = signal_name, label
        suffix = {"Counter": "_total", "Info": "_info"}.get(kind, "")
        told = " ".join(f"`{x}`" for x in labels.split())
        lines.append(f"| `{name}{suffix}` | {kind.lower()} | {told} | {text} |")
    return "\n".join(lines) + "\n"


def unquote(text: str) -> str:
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)).replace('\\"', '"') if '"' in text else text.strip()


USAGE = re.compile(r"^const Usage k\w+\{(.*?)\};", re.M | re.S)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{},]')
RANGE = re.compile(r'^FLATOUT_RANGE\((\w+), "([^"]*)", ([\d.]+), (\w[\w.]*)\)', re.M)


def clauses(text: str) -> list[tuple[list[str], str]]:
    """What an option's text says of which commands; see src/cli/options.def."""
    found = [clause.partition(": ") for clause in text.split(" | ")]
    return [([name.strip() for name in names.split(",")], said) for names, _, said in found]


def text_for(text: str, command: str) -> str:
    """As flatout::cli::text_for()."""
    found = []
    for names, said in clauses(text):
        for name in names:
            base, _, option = name.partition(" --")
            if base in (command, "all") or command.startswith(base + " "):
                found.append(f"with --{option}: {said}" if option else said)
                break
    return "; ".join(found)


def usages() -> list[list]:
    """Of every command its name, synopsis, summary, examples and options, in the order of the program's table."""
    found = []
    for file in (ROOT / "src/cli").glob("*.cpp"):
        for body in USAGE.findall(file.read_text()):
            fields, text, within = [], "", None
            for word in WORD.findall(body):
                if word == "{":
                    within = []
                elif word == "}":
                    fields.append(within)
                    break
                elif word == ",":
                    (fields if within is None else within).append(text) if text else None
                    text = ""
                else:
                    text += word[1:-1].replace("\\n", "\n").replace('\\"', '"')
            if text and within is not None:
                within.append(text)
            fields.append(body.rsplit("}", 1)[1].split(",")[1].strip() == "true")
            found.append(fields)
    table = re.findall(r'^    \{"(\w+)", \w+, \{', (ROOT / "src/cli/program.cpp").read_text(), re.M)
    return sorted(found, key=lambda usage: (table.index(usage[0].split()[0]), usage[0]))


def commands_page() -> str:
    table = (ROOT / "src/cli/options.def").read_text()
    rows = {name: (kind, unquote(default).strip("{}"), unquote(text)) for name, kind, default, text in OPTION.findall(table)}
    lines = ["# Commands", "", "Generated from the tables in `src/cli` by `make docs`. `flatout COMMAND --help` says the same.", ""]
    for name, synopsis, summary, examples, options, json in usages():
        lines += [f"## flatout {name}", "", f"    flatout {name} {synopsis}", "", summary, "", "Examples:", ""]
        lines += [f"  {line}" for line in examples.split("\n")] + [""]
        for option, (kind, default, text) in rows.items():
            if option in options:
                short = "`-o`, " if option == "output" else ""
                value = "" if kind == "flag" else " N" if kind in ("count", "number") else " TEXT"
                shown = f" (default {default})" if default and kind != "flag" else ""
                lines.append(f"- {short}`--{option.replace('_', '-')}{value}`: {text_for(text, name)}{shown}")
        if json:
            lines.append("- `--json`, `--json=FILE`: the result as JSON, on standard output or in a file")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def options_page() -> str:
    lines = ["# Options", "", "Generated from the tables `src/*/options.def` by `make docs`. A flag beats the variable, the variable beats the default.", ""]
    for table in sorted((ROOT / "src").glob("*/options.def")):
        lines += [f"## {table.parent.name}", "", "| flag | variable | type | default | what |", "| --- | --- | --- | --- | --- |"]
        ranges: dict[str, list[str]] = {}
        for name, command, least, most in RANGE.findall(table.read_text()):
            bounds = f", {least} or more" if most == "unbounded" else f", {least} to {most}"
            ranges.setdefault(name, []).append(bounds + (f" ({command})" if command else ""))
        for name, kind, default, text in OPTION.findall(table.read_text()):
            # What is loaded into the job is told by variables alone.
            flag = "" if table.parent.name in ("malloc", "agent", "devlimit") else f"`--{name.replace('_', '-')}`"
            shown = unquote(default).strip("{}")
            told = unquote(text).removeprefix("all: ").replace(" | ", "; ")
            kind += "".join(ranges.get(name, []))
            lines.append(f"| {flag} | `FLATOUT_{name.upper()}` | {kind} | {f'`{shown}`' if shown else ''} | {told} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    pages = {"docs/signals.md": signals_page(), "docs/metrics.md": metrics_page(), "docs/options.md": options_page(),
             "docs/commands.md": commands_page()}
    for path, page in ((ROOT / name, page) for name, page in pages.items()):
        if not check:
            path.write_text(page)
        elif not path.exists() or path.read_text() != page:
            stale.append(f"{path.relative_to(ROOT)} is not what its table says: run `make docs`")
    for line in stale:
        print(line)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes docs/signals.md, docs/metrics.md and docs/options.md from the tables in the code.

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


def options_page() -> str:
    lines = ["# Options", "", "Generated from the tables `src/*/options.def` by `make docs`. A flag beats the variable, the variable beats the default.", ""]
    for table in sorted((ROOT / "src").glob("*/options.def")):
        lines += [f"## {table.parent.name}", "", "| flag | variable | type | default | what |", "| --- | --- | --- | --- | --- |"]
        for name, kind, default, text in OPTION.findall(table.read_text()):
            # What is loaded into the job is told by variables alone.
            flag = "" if table.parent.name in ("malloc", "agent", "devlimit") else f"`--{name.replace('_', '-')}`"
            shown = unquote(default).strip("{}")
            lines.append(f"| {flag} | `FLATOUT_{name.upper()}` | {kind} | {f'`{shown}`' if shown else ''} | {unquote(text)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    pages = {"docs/signals.md": signals_page(), "docs/metrics.md": metrics_page(), "docs/options.md": options_page()}
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

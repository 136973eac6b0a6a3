#!/usr/bin/env python3
"""Writes docs/signals.md and docs/options.md from the tables in the code.

--check writes nothing and fails where a page differs from its table.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIGNAL = re.compile(r'^FLATOUT_SIGNAL\(\w+,\s*"([^"]+)",\s*"([^"]*)",\s*k(\w+),\s*k(\w+),\s*"([^"]*)"\)', re.M)
OPTION = re.compile(
    r'FLATOUT_OPTION\(\s*(\w+)\s*,\s*(\w+)\s*,\s*("(?:[^"\\]|\\.)*"|[^,]+?)\s*,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', re.M)


def signals_page() -> str:
    rows = SIGNAL.findall((ROOT / "src/model/signals.def").read_text())
    lines = ["# Signals", "", "Everything that Flatout measures over time. Generated from `src/model/signals.def` by `make docs`.", "",
             "| signal | unit | kind | of | what |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {unit} | {kind.lower()} | {entity.lower()} | {text} |" for name, unit, kind, entity, text in rows]
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
            shown = unquote(default)
            lines.append(f"| {flag} | `FLATOUT_{name.upper()}` | {kind} | {f'`{shown}`' if shown else ''} | {unquote(text)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for path, page in ((ROOT / "docs/signals.md", signals_page()), (ROOT / "docs/options.md", options_page())):
        if not check:
            path.write_text(page)
        elif not path.exists() or path.read_text() != page:
            stale.append(f"{path.relative_to(ROOT)} is not what its table says: run `make docs`")
    for line in stale:
        print(line)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

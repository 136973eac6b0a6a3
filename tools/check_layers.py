#!/usr/bin/env python3
"""Fails on an #include that the table "Rooms and layers" of docs/architecture.md does not allow.

A room includes itself, the rooms in its row, and flatout/*.h. A row may name only rows above it.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def read_table(text: str) -> dict[str, list[str]]:
    """Room -> rooms it may include, in the order of the table."""
    rows: dict[str, list[str]] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("| room | what it does | may include |"):
            inside = True
        elif inside and line.startswith("| ---"):
            continue
        elif inside and line.startswith("|"):
            room, _, may = (cell.strip() for cell in line.strip("|").split("|", 2))
            rows[room] = may.strip("| ").split()
        elif inside:
            break
    return rows


def problems(root: pathlib.Path) -> list[str]:
    rows = read_table((root / "docs/architecture.md").read_text())
    if not rows:
        return ["docs/architecture.md: the table of rooms is missing"]
    found = []
    above: set[str] = set()
    for room, may in rows.items():
        found += [f"docs/architecture.md: {room} names {r}, which is not above it" for r in may if r not in above]
        above.add(room)
    for file in sorted((root / "src").rglob("*")):
        if file.suffix not in {".h", ".c", ".cpp", ".cu", ".def"}:
            continue
        room = file.relative_to(root / "src").parts[0]
        if room not in rows:
            found.append(f"{file.relative_to(root)}: src/{room} is not in the table of rooms")
            continue
        for target in INCLUDE.findall(file.read_text(errors="replace")):
            first = target.split("/", 1)[0]
            if first == "flatout" or first == room or first in rows[room]:
                continue
            if first in rows:
                found.append(f"{file.relative_to(root)}: {room} may not include {target}")
            elif "/" not in target:
                found.append(f'{file.relative_to(root)}: include "{target}" by its path, "{room}/{target}"')
    return found


def main() -> int:
    found = problems(ROOT)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks the documentation against the tree.

Every relative link leads somewhere, every finding that the code can report has its page, its row and its id in the vocabulary
of `--fail-on`, every page belongs to a finding, and the generated pages are fresh.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FINDING = re.compile(r'"((?:input|cpu|mem|gpu|stall|dist|crash)\.[a-z0-9_]+)"')
SIGNAL = re.compile(r'^FLATOUT_SIGNAL\(\w+, "([^"]+)"', re.M)
ROW = re.compile(r"^\| \[?`?([a-z]+\.[a-z0-9_]+|healthy)`?\]?", re.M)


def dead_links() -> list[str]:
    found = []
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for page in pages:
        if not (ROOT / page).exists():
            continue
        for target in LINK.findall((ROOT / page).read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not ((ROOT / page).parent / target).exists():
                found.append(f"{page}: link to {target}, which is not there")
    return found


def findings_without_page() -> list[str]:
    index = ROOT / "docs/findings/README.md"
    rows = set(ROW.findall(index.read_text())) if index.exists() else set()
    pages = {p.stem for p in (ROOT / "docs/findings").glob("*.md") if p.stem != "README"}
    reported = set()
    for file in (ROOT / "src/diagnose").glob("*.cpp"):
        # fact_kinds.cpp names facts, some of which look like findings.
        if not file.stem.endswith(("_test", "_fuzz", "_bench")) and file.stem != "fact_kinds":
            reported |= set(FINDING.findall(file.read_text()))
    reported -= set(SIGNAL.findall((ROOT / "src/model/signals.def").read_text()))
    found = [f"docs/findings/{f}.md is missing: src/diagnose reports {f}" for f in sorted(reported - pages)]
    found += [f"docs/findings/README.md: no row for {f}" for f in sorted(reported - rows)]
    found += [f"docs/findings/{p}.md: no row in docs/findings/README.md" for p in sorted(pages - rows)]
    known = set(FINDING.findall((ROOT / "src/model/finding_ids.cpp").read_text()))
    found += [f"src/model/finding_ids.cpp lacks {f}" for f in sorted(pages - known)]
    found += [f"src/model/finding_ids.cpp names {f}, which has no page" for f in sorted(known - pages)]
    return found


def main() -> int:
    found = dead_links() + findings_without_page()
    for line in found:
        print(line)
    stale = subprocess.run([sys.executable, str(ROOT / "tools/gen_docs.py"), "--check"], check=False).returncode
    return 1 if found or stale else 0


if __name__ == "__main__":
    sys.exit(main())

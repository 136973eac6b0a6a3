"""What merging a thousand ranks takes: two real ranks are recorded, their folders copied as often as needed.

    FLATOUT_BIN=build/release/flatout build/venv/bin/python bench/ranks/ranks.py --ranks 1000

The copies differ in their rank.json alone: the first rank's recording stands for all but the last, which
is the one that was slowed. So the answer is known: that one holds up the others.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "jobs" / "ranks.py"
RESULTS = ROOT / "bench" / "results" / "ranks.csv"


def record(flatout: str, steps: int, where: Path) -> list[Path]:
    """The run folders of two ranks, by rank."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    script = f"""
import os, subprocess, sys
sys.path.insert(0, {str(JOB.parent)!r})
ranks = [subprocess.Popen([{flatout!r}, "run", "--out", {str(where)!r}, "--", sys.executable, {str(JOB)!r},
                           "--cause", "decode", "--steps", "{steps}"],
                          env={{**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                "MASTER_PORT": "29571"}}) for r in range(2)]
sys.exit(max(p.wait() for p in ranks))
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, stderr=subprocess.DEVNULL)
    return [where / "rank-0", where / "rank-1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--recorded", type=Path, nargs=2, help="run folders of two ranks, the late one last")
    parser.add_argument("--write", action="store_true", help=f"add the row to {RESULTS.relative_to(ROOT)}")
    opts = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first, last = opts.recorded or record(flatout, opts.steps, folder / "recorded")
        all_ranks = folder / "ranks"
        all_ranks.mkdir()
        size = 0
        for rank in range(opts.ranks):
            source = last if rank == opts.ranks - 1 else first
            copy = all_ranks / f"{rank:05d}"
            copy.mkdir()
            for name in ("series.bin", "events.bin"):
                os.link(source / name, copy / name)
                size += (copy / name).stat().st_size
            place = json.loads((source / "rank.json").read_text())
            (copy / "rank.json").write_text(json.dumps({**place, "rank": rank, "world_size": opts.ranks}))
        begin = time.monotonic()
        done = subprocess.run([flatout, "merge", "--json", str(all_ranks), "-o", str(folder / "job")],
                              capture_output=True, text=True, check=True)
        wall = time.monotonic() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(done.stdout)
        report = folder / "job" / "report.html"
        row = {
            "ranks": opts.ranks, "steps": opts.steps, "recordings_mb": round(size / 1e6, 1), "wall_s": round(wall, 2),
            "peak_rss_mb": round(used.ru_maxrss / 1024, 1), "verdict": found["verdict"],
            "late": " ".join(str(r["rank"]) for r in found["ranks"] if r["late"]),
            "report_kb": report.stat().st_size // 1000, "findings_kb": len(done.stdout) // 1000,
            "cores": os.cpu_count(), "load": os.getloadavg()[0],
        }
    print(json.dumps(row, indent=2))
    if opts.write:
        fresh = not RESULTS.exists()
        with RESULTS.open("a", newline="") as out:
            writer = csv.DictWriter(out, row)
            if fresh:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()

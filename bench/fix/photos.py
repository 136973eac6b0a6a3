"""What `flatout fix` gains on bench/fix/train_photos.py, from start to end, and whether the losses stay what they were.

    FLATOUT_BIN=build/release/flatout python bench/fix/photos.py FOLDER [--epochs 6] [--seeds 3] [--budget 3m]

`flatout fix` once, told nothing. Then whole trainings, as they are and with what was kept (`flatout run --with fix.json`), take turns, one of each for
each seed: seconds from start to end, and the mean loss of each epoch beside the spread of the plain runs' seeds. FOLDER: bench/feed/photos.py makes one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Sequence, Tuple

SCRIPT = Path(__file__).resolve().with_name("train_photos.py")


def train(prefix: Sequence[str], options: argparse.Namespace, seed: int) -> Tuple[float, List[float]]:
    """Seconds from start to end, and the loss of each epoch."""
    begin = time.monotonic()
    done = subprocess.run([*prefix, sys.executable, str(SCRIPT), options.folder, "--epochs", str(options.epochs), "--seed", str(seed)],
                          check=True, capture_output=True, text=True)
    return time.monotonic() - begin, [float(loss) for loss in re.findall(r"loss (\S+),", done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="3m")
    options = parser.parse_args()
    flatout = os.path.abspath(os.environ.get("FLATOUT_BIN", "build/release/flatout"))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as out:
        subprocess.run([flatout, "fix", "--budget", options.budget, "--out", out, "--", sys.executable, str(SCRIPT), options.folder, "--epochs", "1000"], check=True)
        kept = json.loads((Path(out) / "fix.json").read_text())["kept"]
        ways = {"as it is": [], "with fix": [flatout, "run", "--quiet", "--out", out + "/run", "--with", out + "/fix.json", "--"]}
        runs = {name: [] for name in ways}
        for seed in range(options.seeds):
            for name in list(ways)[:: 1 if seed % 2 else -1]:
                runs[name].append(train(ways[name], options, seed))
                print(f"seed {seed} {name}: {runs[name][-1][0]:.1f} s, losses {' '.join(map(str, runs[name][-1][1]))}", flush=True)
    print(f"\nkept: {' '.join(kept) or 'nothing'}\nepoch  as it is (lowest to highest seed)   with fix (lowest to highest)")
    for epoch in range(options.epochs):
        plain, fixed = ([losses[epoch] for _, losses in runs[name]] for name in ways)
        print(f"{epoch:5}  {statistics.fmean(plain):.3f} ({min(plain):.3f} to {max(plain):.3f})               "
              f"{statistics.fmean(fixed):.3f} ({min(fixed):.3f} to {max(fixed):.3f})")
    before, after = (statistics.median(seconds for seconds, _ in runs[name]) for name in ways)
    print(f"from start to end: {before:.1f} s as it is, {after:.1f} s with fix: {before / after:.2f}x")


if __name__ == "__main__":
    main()

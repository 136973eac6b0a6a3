"""How long flatout.feed's first batches take against any other: of an epoch after the first, and after a resume in the middle of one.

Batches are taken as fast as they come, so the time between two is what making one takes. Medians over all epochs and resumes, wall time: have
the machine for yourself.

    python bench/feed/starts.py FOLDER [--epochs 12] [--resumes 30] [--threads 2] [--batch 64]
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import time

from compare import ROOT

sys.path.insert(0, str(ROOT / "python"))

from flatout.feed import Loader  # noqa: E402


def intervals(loader):
    """Seconds that each batch of the epoch was waited for."""
    out, began = [], time.perf_counter()
    for _ in loader:
        out.append(time.perf_counter() - began)
        began = time.perf_counter()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--resumes", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    loader = Loader(options.folder, options.batch, 224, threads=options.threads, form="batch", drop_last=True)
    intervals(loader)  # the seek index is made
    epochs = [intervals(loader) for _ in range(options.epochs)]
    normal = statistics.median(t for epoch in epochs for t in epoch[1:])
    across = statistics.median(epoch[0] for epoch in epochs[1:])
    state, resumed = loader.state_dict(), []
    pick = random.Random(1)
    for _ in range(options.resumes):
        state["position"] = pick.randrange(len(loader) - 1) * options.batch + pick.randrange(options.batch)
        loader.load_state_dict(state)
        batches = iter(loader)
        began = time.perf_counter()
        next(batches)
        resumed.append(time.perf_counter() - began)
    print(f"a batch of {options.batch}: {normal * 1000:.1f} ms")
    print(f"the first of an epoch after the first: {across * 1000:.1f} ms ({across / normal:.2f} of it)")
    resume = statistics.median(resumed)
    print(f"the first after a resume: {resume * 1000:.1f} ms ({resume / normal:.2f} of it); state: {len(json.dumps(state))} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""`flatout devmem batch` against recordings: from steps with 4 and 8 samples on the CPU, the live peak of larger batches.

Needs PyTorch; runs FLATOUT_BIN, else build/release/flatout.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import record
import torch
from torch.profiler import ProfilerActivity, profile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLATOUT = os.environ.get("FLATOUT_BIN", ROOT / "build" / "release" / "flatout")
MODELS = {
    "residual network": (record.conv_net, lambda b: torch.randn(b, 3, 96, 96), torch.optim.SGD),
    "encoder": (record.encoder, lambda b: torch.randn(b, 64, 256), torch.optim.AdamW),
}


def recorded(name: str, batch: int, folder: str) -> pathlib.Path:
    """Three training steps with so many samples, in torch.profiler's format."""
    make, samples, optimizer = MODELS[name]
    path = pathlib.Path(folder) / f"{name}-{batch}.json"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.manual_seed(1)
        model = make()
        updates = optimizer(model.parameters(), lr=0.01)
        for _ in range(3):
            updates.zero_grad()
            model(samples(batch)).square().mean().backward()
            updates.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def flatout(*words) -> object:
    done = subprocess.run([FLATOUT, "devmem", *map(str, words), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            model = flatout("batch", "--card", "4GiB", *(f"{b}={recorded(name, b, folder)}" for b in (4, 8)))
            for batch in (24, 40):
                predicted = model["fixed_bytes"] + batch * model["per_sample_bytes"]
                bound = flatout("replay", recorded(name, batch, folder))[-1]
                print(f"{name:<17} batch {batch}: predicted {predicted / 2**20:6.1f} MiB, recorded "
                      f"{bound['peak_live_bytes'] / 2**20:6.1f} MiB ({model['basis']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

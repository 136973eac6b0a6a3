"""Predicted against measured gain of the gpu.* causes, on the simulated device of tests/gpu.

    FLATOUT_BIN=build/release/flatout python3 bench/gpu/gains.py --rounds 5

For each cause the job runs with it below `flatout run --cupti`, which predicts the gain, and then with it and without it in
turns, without flatout: the ratio of the median times of a step is the measured gain. The device's times are scripted, so that
only the host's are noisy. Writes bench/results/gpu_gains.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
CARD = {"name": "Simulated", "uuid": "GPU-00000000-0000-0000-0000-000000000001", "util": 97, "mem_util": 20, "mem_total": 64 * GIB,
        "mem_used": 0, "clock_sm": 1800, "clock_sm_max": 1800, "clock_mem": 2000, "power": 300000, "power_limit": 400000,
        "temperature": 60, "throttle": 0, "ecc": 0, "multiprocessors": 108}
# Cause, what it becomes where it is taken away, the finding.
CASES = [("sync", "none", "gpu.sync"), ("pageable", "none", "input.h2d_sync"), ("no_overlap", "overlap", "gpu.no_overlap"),
         ("round_trip", "none", "gpu.wrong_device"), ("launch", "launch_graph", "gpu.launch_bound"), ("norm", "norm_fused", "gpu.unfused_norm")]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    opts = parser.parse_args()
    flatout = Path(os.environ.get("FLATOUT_BIN", ROOT / "build" / "release" / "flatout")).resolve()
    job = flatout.parent / "gpu_sim" / "gpu_train"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        card = Path(folder, "card")
        card.write_text("\n".join(["devices 1", "driver 580.00", "cuda 13000", *(f"0 {k} {v}" for k, v in CARD.items())]) + "\n")
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{job.parent}:{flatout.parent / 'nvml_stand_in'}", "NVML_STAND_IN": str(card)}

        def step_ms(cause: str) -> float:
            done = subprocess.run([job, cause, str(opts.seconds)], env=environment, capture_output=True, text=True, check=True)
            return 1e3 * opts.seconds / int(re.search(r"(\d+) steps", done.stdout)[1])

        for cause, without, name in CASES:
            predicted, with_it, without_it = [], [], []
            for number in range(opts.rounds):
                out = Path(folder, f"{cause}-{number}")
                subprocess.run([flatout, "run", "--quiet", "--cupti", "--out", out, "--", job, cause, str(opts.seconds)],
                               env=environment, capture_output=True, check=True)
                found = json.loads((out / "findings.json").read_text())["findings"]
                predicted += [f["gain"] for f in found if f["id"] == name]
                with_it.append(step_ms(cause))
                without_it.append(step_ms(without))
            row = {"cause": name, "found": f"{len(predicted)} of {opts.rounds}",
                   "predicted": round(statistics.median(predicted), 2) if predicted else None,
                   "measured": round(statistics.median(with_it) / statistics.median(without_it), 2),
                   "step_ms": round(statistics.median(with_it), 2), "without_ms": round(statistics.median(without_it), 2)}
            rows.append(row)
            print(row, flush=True)
    with open(ROOT / "bench" / "results" / "gpu_gains.csv", "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

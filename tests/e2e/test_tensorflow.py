"""The doctor on real TensorFlow jobs: what a compiled step waits for inside itself, and what it is fed by hand."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

FIT = """
import numpy as np, tensorflow as tf, time
model = tf.keras.Sequential([tf.keras.layers.Dense({width}, activation="relu"), tf.keras.layers.Dense({width}, activation="relu"),
                             tf.keras.layers.Dense(10)])
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""

SLEEPS = FIT.format(width=64) + """
def batches():
    while True:
        time.sleep(0.03)  # CAUSE
        yield np.ones((32, 64), np.float32), np.arange(32) % 10

model.fit(batches(), steps_per_epoch=200, verbose=0)
"""

# A call of Python for each sample.
WORKS = FIT.format(width=64) + """
def sample(i):
    total = 0
    for k in range(12000):  # CAUSE
        total += k % 7  # CAUSE
    return np.full(64, total % 5, np.float32)

data = tf.data.Dataset.range(1_000_000).map(
    lambda i: (tf.ensure_shape(tf.numpy_function(sample, [i], tf.float32), [64]), i % 10)).batch(32).prefetch(2)
model.fit(data, steps_per_epoch=200, verbose=0)
"""

HEALTHY = FIT.format(width=1024) + """
data = tf.data.Dataset.from_tensor_slices((np.random.rand(4096, 64).astype("float32"), np.random.randint(0, 10, 4096)))
model.fit(data.shuffle(4096).repeat().batch(256).prefetch(4), steps_per_epoch=400, verbose=0)
"""

# A generator that costs next to nothing beside the step.
AHEAD = FIT.format(width=1024) + """
x, y = np.random.rand(256, 64).astype("float32"), np.random.randint(0, 10, 256)

def batches():
    while True:
        yield x, y

model.fit(batches(), steps_per_epoch=400, verbose=0)
"""


def findings(flatout: str, python: str, folder: Path, *command) -> list[dict]:
    done = subprocess.run([flatout, "run", "--out", folder / "run", "--", python, *command], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "the agent in pid" not in done.stderr
    # On a busy machine others may be told, too.
    found = json.loads((folder / "run" / "findings.json").read_text())["findings"]
    return [f for f in found if f["id"] not in ("cpu.noisy_neighbour", "cpu.stolen")]


# Python's work in a thread is CPU time, and the interpreter's lock beside Keras' own Python: either names it.
@pytest.mark.parametrize("job, causes", [(SLEEPS, {"stall.idle_wait"}), (WORKS, {"input.decode_cpu", "input.gil"})],
                         ids=["sleeps", "works"])
def test_what_a_compiled_step_waits_for_is_found(flatout, tensorflow, tmp_path, job, causes):
    (tmp_path / "job.py").write_text(job)
    first = findings(flatout, tensorflow, tmp_path, tmp_path / "job.py")[0]
    assert first["id"] in causes
    lines = [n for n, line in enumerate(job.splitlines(), 1) if "# CAUSE" in line]
    assert first["where"]["file"] == str(tmp_path / "job.py") and first["where"]["line"] in lines
    assert first["gain"] > 1.4


@pytest.mark.parametrize("job", [HEALTHY, AHEAD], ids=["healthy", "ahead"])
def test_a_healthy_fit_is_left_alone(flatout, tensorflow, tmp_path, job):
    (tmp_path / "job.py").write_text(job)
    assert findings(flatout, tensorflow, tmp_path, tmp_path / "job.py") == []


def test_a_session_that_is_fed_by_hand(flatout, tensorflow, tmp_path):
    job = Path(__file__).resolve().parents[1] / "jobs" / "feed_dict.py"
    first = findings(flatout, tensorflow, tmp_path, job, "--seconds", "8")[0]
    assert first["id"] == "input.feed_dict"
    lines = [n for n, line in enumerate(job.read_text().splitlines(), 1) if "# CAUSE" in line]
    assert first["where"]["line"] in lines

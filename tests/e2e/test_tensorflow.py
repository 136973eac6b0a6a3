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

# Native work on each sample, in the threads of tf.data.
MAPS = FIT.format(width=64) + """
def sample(i):
    x = tf.image.resize(tf.random.stateless_uniform([96, 96, 3], [i, 7]), [64, 64], method="bicubic")
    return tf.reshape(x, [-1])[:64], i % 10

data = tf.data.Dataset.range(512).repeat()
data = data.map(sample)  # CAUSE
model.fit(data.batch(32), steps_per_epoch=400, verbose=0)
"""

# As an agent that learns from a replay buffer does it.
REPLAYS = FIT.format(width=64) + """
x, y = np.random.rand(64, 64).astype("float32"), np.random.randint(0, 10, 64)
for step in range(120):
    model.fit(x, y, batch_size=64, verbose=0)  # CAUSE
"""

# Operation by operation.
EAGER = FIT.format(width=64) + """
x, y = np.random.rand(2048, 64).astype("float32"), np.random.randint(0, 10, 2048)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64).prefetch(4), steps_per_epoch=250, verbose=0)  # CAUSE
"""

JAX = """
import time
import jax, jax.numpy as jnp, numpy as np

def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

@jax.jit
def update(w, x, y):
    value, g = jax.value_and_grad(loss)(w, x, y)
    return jax.tree_util.tree_map(lambda p, d: p - 1e-3 * d, w, g), value

rng = np.random.default_rng(0)
w = {{"a": jnp.full((256, 512), 0.01), "b": jnp.full((512, 1), 0.01)}}
x, y = rng.random((256, 256), np.float32), np.ones((256, 1), np.float32)
began = time.perf_counter()
while time.perf_counter() - began < 6:
    {cause}
    w, value = update(w, x, y)
    float(value)
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


@pytest.mark.parametrize("job, cause", [(MAPS, {"input.decode_cpu", "input.too_few_workers"}), (REPLAYS, {"cpu.python_bound"}),
                                        (EAGER, {"cpu.python_bound"}), (JAX.format(cause="time.sleep(0.01)  # CAUSE"), {"stall.idle_wait"})],
                         ids=["maps", "replays", "eager", "jax"])
def test_the_line_to_blame_is_named(flatout, tensorflow, tmp_path, job, cause):
    (tmp_path / "job.py").write_text(job)
    first = findings(flatout, tensorflow, tmp_path, tmp_path / "job.py")[0]
    assert first["id"] in cause
    lines = [n for n, line in enumerate(job.splitlines(), 1) if "# CAUSE" in line]
    assert first["where"]["file"] == str(tmp_path / "job.py") and first["where"]["line"] in lines
    assert first["gain"] > 1.2


def test_a_healthy_jax_loop_has_steps_and_is_left_alone(flatout, tensorflow, tmp_path):
    (tmp_path / "job.py").write_text(JAX.format(cause="pass"))
    assert findings(flatout, tensorflow, tmp_path, tmp_path / "job.py") == []
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["steps"]["count"] > 100

"""Small JAX jobs for test_agent.py; like agent_jobs.py."""
import functools
import hashlib
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import numpy as np


def parameters():
    rng = np.random.default_rng(1)
    return {"a": jnp.asarray(rng.random((4, 8), np.float32)), "b": jnp.asarray(rng.random((8, 1), np.float32))}


def batches(count=6):
    rng = np.random.default_rng(2)
    return [(rng.random((16, 4), np.float32), rng.random((16, 1), np.float32)) for _ in range(count)]


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)


def update(w, x, y):
    value, gradients = jax.value_and_grad(loss)(w, x, y)
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, w, gradients), value


def digest(w):
    h = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(w):
        h.update(np.asarray(leaf).tobytes())
    print("params", h.hexdigest()[:16])


def compiled():
    w, step, left = parameters(), jax.jit(update), batches()
    print(step.lower(w, *left[0]).as_text()[:6], step.__name__, jax.eval_shape(step, w, *left[0])[1].shape)
    while left:
        w, value = step(w, *left.pop())
        print("loss", float(value).hex())
    digest(w)


def method():
    """A decorated method, and a compiled function within another and within a gradient."""

    @jax.jit
    def normal(x):
        return (x - x.mean()) / x.std()

    class Trainer:
        @functools.partial(jax.jit, static_argnums=0)
        def step(self, w, x, y):
            return update(w, normal(x), y)

    trainer, w = Trainer(), parameters()
    for x, y in batches():
        w, value = trainer.step(w, normal(x), y)
    print(jax.grad(lambda w, x, y: loss(w, normal(x), y))(w, *batches(1)[0])["b"].shape)
    digest(w)


def anew():
    """Compiled again for each batch."""
    w = parameters()
    for x, y in batches():
        w, value = jax.jit(lambda w, x, y: update(w, x, y))(w, x, y)
    digest(w)


def eager():
    w = parameters()
    for x, y in batches():
        w, value = update(w, x, y)
    jax.block_until_ready(w)
    digest(w)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

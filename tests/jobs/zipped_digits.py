"""NumPy alone: digits from a compressed archive, in which every access unpacks the whole array.

--fixed unpacks it once.
"""

import numpy as np

import kit


def make(folder):
    random = np.random.default_rng(60)
    labels = random.integers(0, 10, 4000)
    pictures = (random.random((4000, 784)) < 0.15 + 0.03 * labels[:, None]) * random.integers(1, 255, (4000, 784))
    np.savez_compressed(folder / "digits.npz", x=pictures.astype(np.uint8), y=labels)


def main():
    opts = kit.options()
    data = np.load(kit.data_dir("zipped-digits", make) / "digits.npz")
    if opts.fixed:
        data = {name: data[name] for name in data.files}
    random = np.random.default_rng(1)
    first, second = random.standard_normal((784, 256)) * 0.05, random.standard_normal((256, 10)) * 0.1
    meter = kit.Meter(opts)
    while not meter.over:
        chosen = random.integers(0, len(data["y"]), 128)  # CAUSE
        x = data["x"][chosen].astype(np.float64) / 255  # CAUSE
        y = data["y"][chosen]  # CAUSE
        hidden = np.maximum(x @ first, 0)
        scores = np.exp(hidden @ second - (hidden @ second).max(1, keepdims=True))
        error = scores / scores.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        back = (error @ second.T) * (hidden > 0)
        second -= 0.001 * hidden.T @ error
        first -= 0.001 * x.T @ back
        meter.step()
    meter.write()


if __name__ == "__main__":
    main()

"""Augmentations on NumPy arrays, as people write them by hand."""

import numpy as np


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class RandomGamma:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, image):
        gamma = self.rng.uniform(0.7, 1.4)
        return np.power(image, gamma)  # CAUSE


class Blur:
    """Separable Gaussian blur, tap by tap."""

    def __init__(self, radius=8, sigma=2.5):
        taps = np.arange(-radius, radius + 1)
        kernel = np.exp(-0.5 * (taps / sigma) ** 2)
        self.radius = radius
        self.kernel = (kernel / kernel.sum()).astype(np.float32)

    def __call__(self, image):
        for axis in (0, 1):
            out = np.zeros_like(image)
            for offset, weight in zip(range(-self.radius, self.radius + 1), self.kernel):
                out += weight * np.roll(image, offset, axis=axis)  # CAUSE
            image = out
        return image


class Normalize:
    def __call__(self, image):
        return ((image - 0.5) / 0.25).astype(np.float32)

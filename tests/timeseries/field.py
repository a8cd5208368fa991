"""A field of waves, small, of which tests know everything."""

from __future__ import annotations

import numpy as np

N, SHAPE = 120, (5, 6)


def waves(n: int = N, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Return a travelling wave of period 20, a standing one of period 8 that decays, and noise (n, *SHAPE)."""
    t, x = np.arange(n)[:, None], np.linspace(0, 2 * np.pi, 30, endpoint=False)
    field = 3 * np.sin(x - t * np.pi / 10) + 2 * np.cos(2 * x) * np.cos(t * np.pi / 4) * np.exp(-0.003 * t)
    return (field + noise * np.random.default_rng(seed).normal(size=field.shape)).reshape(n, *SHAPE)

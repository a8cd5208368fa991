"""Samples with weights that are not whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

SHAPE, N, K = (4, 6), 90, 3


def samples(dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Samples far from 0, and weights from 0 to 3."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4)) @ rng.normal(size=(4, 24)) * 5 + rng.normal(size=(N, 24)) * 0.3 + 100
    weights = rng.random(N) * 3
    weights[::7] = 0
    return x.astype(dtype).reshape(N, *SHAPE), weights

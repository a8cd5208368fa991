"""Samples of a few patterns with noise, and a program that ends, for tests of components on disk."""

from __future__ import annotations

from typing import Any

import numpy as np


class Stopped(Exception):
    """Ends a program."""


def patterned(n: int, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Return samples (n, *shape) of three patterns and noise, of a mean of 120 and in the range of bytes."""
    rng = np.random.default_rng(seed)
    x = np.tensordot(rng.normal(size=(n, 3)) * (9, 6, 4), rng.normal(size=(3, *shape)), 1)
    return ((x + rng.normal(size=(n, *shape))) * 3 + 120).clip(0, 255).astype(dtype)

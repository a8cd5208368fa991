"""A small field of waves and a linear system with known properties; does not import dpca."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import expm

N, SHAPE = 120, (5, 6)


def waves(n: int = N, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Return a travelling wave of period 20, a standing one of period 8 that decays, and noise (n, *SHAPE)."""
    t, x = np.arange(n)[:, None], np.linspace(0, 2 * np.pi, 30, endpoint=False)
    field = 3 * np.sin(x - t * np.pi / 10) + 2 * np.cos(2 * x) * np.cos(t * np.pi / 4) * np.exp(-0.003 * t)
    return (field + noise * np.random.default_rng(seed).normal(size=field.shape)).reshape(n, *SHAPE)


RATES = np.array([-0.1 + 3j, 0.05 + 1j])


def linear(n: int, rates: Any = RATES, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return times and samples of a linear system with these rates, and their conjugates, in 12 attributes."""
    rng = np.random.default_rng(seed)
    blocks = np.zeros((2 * len(rates), 2 * len(rates)))
    for i, rate in enumerate(rates):
        blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[rate.real, rate.imag], [-rate.imag, rate.real]]
    times = 0.2 * np.arange(n)
    courses = np.stack([expm(blocks * t) @ np.ones(len(blocks)) for t in times])
    return times, courses @ rng.normal(size=(len(blocks), 12))


def noisy() -> tuple[np.ndarray, np.ndarray]:
    """Return times and samples of such a system with some noise."""
    times, samples = linear(80)
    return times, samples + 1e-3 * np.random.default_rng(0).normal(size=samples.shape)

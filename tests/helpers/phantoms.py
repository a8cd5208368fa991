"""Image stacks with known noise-free truth: a phantom of diffusion MRI, and a movie of a two-photon microscope."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def diffusion(shape: tuple[int, ...] = (32, 32, 12), n: int = 67, seed: int = 0) -> Floats:
    """Return n volumes (n, *shape): two crossing bundles of fibers that turn, a ventricle, and empty space."""
    rng = np.random.default_rng(seed)
    unweighted = max(1, n // 16)
    b = np.r_[np.zeros(unweighted), np.where(np.arange(n - unweighted) % 2 == 0, 1.0, 2.5)]
    gradients = rng.normal(size=(n, 3))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    x, y, z = np.meshgrid(*[np.linspace(-1, 1, s) for s in shape], indexing="ij")
    radius = np.sqrt(x**2 + (1.1 * y) ** 2 + (1.2 * z) ** 2)
    ventricle = np.sqrt((2.5 * x) ** 2 + (1.5 * y) ** 2 + (1.5 * z) ** 2) < 0.45
    first = _unit(np.cos(np.pi * (x + 0.5 * y)), np.sin(np.pi * (x + 0.5 * y)), 0.3 * z)
    second = _unit(0.4 * x, np.cos(np.pi * (y - 0.3 * z)), np.sin(np.pi * (y - 0.3 * z)))
    share = 0.5 + 0.4 * np.sin(3 * x) * np.cos(2 * y)
    density = 0.6 + 0.3 * np.cos(2 * radius)
    volumes = np.zeros((n, *shape))
    for volume, weight, gradient in zip(volumes, b, gradients, strict=True):
        one = np.exp(-weight * (0.2 + 1.5 * (first @ gradient) ** 2))
        other = np.exp(-weight * (0.3 + 1.2 * (second @ gradient) ** 2))
        signal = np.where(ventricle, np.exp(-3 * weight), density * (share * one + (1 - share) * other))
        volume[...] = np.where(radius < 0.95, signal, 0)
    return volumes


def _unit(*parts: Floats) -> Floats:
    vectors = np.stack(parts, -1)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def movie(n: int = 2000, size: int = 128, cells: int = 80, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Return the expected photons (n, size, size), and footprints and traces of cells that fire."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    light = 20 + 30 * np.exp(-((x - size / 2) ** 2 + (y - size / 2) ** 2) / (size / 2) ** 2)
    light = light + 10 * np.sin(x / 9) * np.cos(y / 11)
    photons = light * (1 + 0.1 * np.sin(np.arange(n) / 150))[:, None, None]
    response = np.exp(-np.arange(100) / 20) - np.exp(-np.arange(100) / 3)
    footprints, traces = np.zeros((cells, size, size)), np.zeros((cells, n))
    for footprint, trace in zip(footprints, traces, strict=True):
        (row, column), width = rng.uniform(5, size - 5, 2), rng.uniform(2.5, 4)
        footprint[...] = np.exp(-((((y - row) ** 2 + (x - column) ** 2) / (2 * width**2)) ** 2))
        spikes = (rng.random(n) < 0.01) * rng.uniform(0.5, 1.5, n)
        trace[...] = np.convolve(spikes, response)[:n] * 60
        photons += trace[:, None, None] * footprint
    return photons, footprints, traces


def rmse(values: Any, truth: Floats) -> float:
    """Return the root mean squared error."""
    return float(np.sqrt(np.mean((np.asarray(values, np.float64) - truth) ** 2)))

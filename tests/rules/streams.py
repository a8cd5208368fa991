"""Streams with a known answer, for the tests of the streaming rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.rules.covariance.measured import certified_share, errors_of


def planted(n: int = 4000, d: int = 30, seed: int = 0) -> np.ndarray:
    """Samples with variances 9, 4, 2.25 along three random directions and 0.04 elsewhere, mean 1."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    deviations = np.r_[3.0, 2.0, 1.5, np.full(d - 3, 0.2)]
    return 1 + (rng.normal(size=(n, d)) * deviations) @ basis.T


def fold(rule: Any, x: np.ndarray, rows: int = 100) -> Any:
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), rows):
        state = rule.update(state, x[start : start + rows])
    return state


def fit(rule: Any, x: np.ndarray, rows: int = 100) -> dict[str, np.ndarray]:
    return rule.finish(fold(rule, x, rows))


def leading(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances and components of the sample covariance, descending."""
    values, vectors = np.linalg.eigh(np.cov(x.astype(float), rowvar=False))
    return values[::-1][:k], vectors[:, ::-1][:, :k].T


def lost_variance(components: np.ndarray, x: np.ndarray) -> float:
    """Share of the variance of the best subspace of this size that this one misses."""
    covariance = np.cov(x.astype(float), rowvar=False)
    q = np.linalg.qr(components.astype(float).T)[0]
    return float(1 - np.trace(q.T @ covariance @ q) / leading(x, len(components))[0].sum())


def same_span(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-10) -> bool:
    """Say whether rows a and b span the same subspace."""
    p, q = (np.linalg.qr(rows.astype(float).T)[0] for rows in (a, b))
    return bool(np.abs(p @ p.T - q @ q.T).max() < tolerance)


def optimum(found: dict[str, np.ndarray], k: int) -> float:
    """Upper bound on the variance of the best k components, from the result of a Rayleigh-Ritz pass."""
    _, missed, largest, _ = certified_share(found, k)
    off = np.sqrt(k) * float(np.linalg.norm(errors_of(found).rows(largest)[:k]))
    return float(found["explained_variance"][:k].sum()) + missed + off

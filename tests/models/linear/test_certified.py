"""What is proved of components is true: 200 spectra, sizes, types and ways to fit, against sums in extended precision.

BLAS rounds as the processor does: `.ci/run` runs this under several of OpenBLAS's core types.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpca import PCA, StreamingPCA
from dpca.rules import IncrementalSVD
from dpca.storage import DataError

Samples = np.ndarray[Any, Any]
# What is left of 1 - share when all is computed in extended precision.
EXACT = 1e-17


def spectrum(name: str, d: int) -> Samples:
    """Standard deviations of d directions."""
    return {
        "flat": np.ones(d),
        "fast": 0.5 ** np.arange(d),
        "slow": 1 / np.sqrt(1 + np.arange(d)),
        "low rank": np.where(np.arange(d) < 3, 1.0, 0.0),
        "spiked": np.where(np.arange(d) < 2, 30.0, 1.0),
        "ties": 2.0 ** -(np.arange(d) // 4),
    }.get(name, 0.9 ** np.arange(d))


def samples(name: str, dtype: str, n: int, d: int, rng: np.random.Generator) -> Samples:
    """Samples (n, d) with about such a spectrum."""
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    x = (rng.normal(size=(n, d)) * spectrum(name, d)) @ turn
    if dtype.startswith("uint"):
        # Most of the range of the type; little of it beside a large offset.
        most = 2 ** (8 * np.dtype(dtype).itemsize)
        size, middle = (2.5, most - 20) if name == "offset" else (most / 9 / max(x.std(), 1e-9), most / 2)
        x = 3 * rng.integers(0, 2, (n, d)) if name == "few levels" else np.clip(size * x + middle, 0, most - 1)
    else:
        x = x * {"tiny": 1e-17, "huge": 1e15}.get(name, 1.0) + {"offset": 3e3, "tiny": 1e-16}.get(name, 1.0)
        x = np.round(x) if name == "few levels" else x
    return x.astype(dtype)


SPECTRA = ("flat", "fast", "slow", "low rank", "spiked", "ties", "offset", "tiny", "huge", "few levels")
DTYPES = ("uint8", "uint16", "float32", "float64")


def missed(x: Samples, components: Samples, weights: Samples | None = None) -> float:
    """Share of the best components' variance that these miss, in extended precision."""
    wide, w = x.astype(np.longdouble), np.ones(len(x), np.longdouble) if weights is None else weights
    wide = wide / np.abs(wide).max()
    centered = np.sqrt(w)[:, None] * (wide - w @ wide / w.sum())
    covariance = centered.T @ centered
    leading = np.linalg.eigh(covariance.astype(float))[1][:, ::-1][:, : len(components)].T
    best, captured = (captured_by(covariance, rows) for rows in (leading, components))
    return float((best - captured) / best) if best > 0 else 0.0


def captured_by(covariance: Samples, rows: Samples) -> np.longdouble:
    """Sum of variances along the span of rows."""
    basis = rows.astype(np.longdouble)
    for i, row in enumerate(basis):
        for _ in range(2):
            row -= (row @ basis[:i].T) @ basis[:i]
        row /= np.sqrt(row @ row)
    return np.sum((basis @ covariance) * basis)


def one_pass(x: Samples, k: int, rng: np.random.Generator) -> tuple[float, Samples, None]:
    """By batches of any size."""
    size, further = int(rng.choice([1, 7, 64, 1000])), int(rng.integers(0, 6))
    model = StreamingPCA(k, method="incremental-svd", batch_size=size, oversampling=further).fit(x)
    return model.captured_bound_, model.components_, None


def further_passes(x: Samples, k: int, rng: np.random.Generator) -> tuple[float, Samples, None]:
    """Two passes, or three."""
    n_passes, further = int(rng.choice([2, 3])), int(rng.integers(0, 12))
    method = "incremental-svd" if rng.random() < 0.8 else "ccipca"
    options = {} if method == "ccipca" else {"oversampling": further}
    model = StreamingPCA(k, method=method, n_passes=n_passes, batch_size=50, random_state=0, **options).fit(x)
    return model.captured_bound_, model.components_, None


def exact(x: Samples, k: int, rng: np.random.Generator) -> tuple[float, Samples, None]:
    """By the covariance in one pass, or by an exact solver."""
    way = int(rng.integers(3))
    model: Any = PCA(k, solver=("covariance", "dual")[way]) if way < 2 else StreamingPCA(k, method="covariance")
    model.fit(x)
    return model.captured_bound_, model.components_, None


def iterated(x: Samples, k: int, rng: np.random.Generator) -> tuple[float, Samples, None]:
    """By a solver that iterates."""
    solver = str(rng.choice(["randomized", "orthogonal-iteration", "vr-pca"]))
    model = PCA(k, solver=solver, n_iter=int(rng.integers(1, 6)), random_state=0).fit(x)
    return model.captured_bound_, model.components_, None


def merged_or_forgotten(x: Samples, k: int, rng: np.random.Generator) -> tuple[float, Samples, Samples]:
    """The rule itself: segments that are merged, of samples that count less and less."""
    forgetting = float(rng.choice([1.0, 0.995, 0.9]))
    rule, parts = IncrementalSVD(k, int(rng.integers(0, 5)), forgetting=forgetting), []
    edges = [0, *np.sort(rng.integers(1, len(x), 3)).tolist(), len(x)]
    size = int(rng.choice([1, 16, 300]))
    for start, stop in itertools.pairwise(edges):
        state = rule.init(x.shape[1], x.dtype)
        for first in range(start, stop, size):
            state = rule.update(state, x[first : min(first + size, stop)])
        parts.append(state)
    found = rule.finish(rule.merge(rule.merge(parts[0], parts[1]), rule.merge(parts[2], parts[3])))
    weights = np.longdouble(forgetting) ** np.arange(len(x) - 1, -1, -1)
    return float(found["captured_bound"]), found["components"], weights


WAYS: tuple[Callable[..., Any], ...] = (one_pass, further_passes, exact, iterated, merged_or_forgotten)


@pytest.mark.cases(4)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_proved_is_true(way: Callable[..., Any], dtype: str) -> None:
    wrong, told = [], []
    for number, name in enumerate(SPECTRA):
        rng = np.random.default_rng([number, DTYPES.index(dtype), WAYS.index(way)])
        n, d = ((60, 25), (500, 12), (30, 60), (300, 40))[int(rng.integers(4))]
        x, k = samples(name, dtype, n, d, rng), int(rng.integers(1, min(n, d) - 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                bound, components, weights = way(x, k, rng)
            except DataError:  # no certificate of values whose squares leave the range of their type
                assert name in ("tiny", "huge")
                continue
        assert 0 <= bound <= 1
        lost = missed(x, components, weights)
        told.append(1 - bound)
        if not 1 - bound >= lost - EXACT:
            wrong.append(
                f"{name}: {n} x {d}, k = {k}: {lost:.3g} are missed, {1 - bound:.3g} at most by the certificate"
            )
    assert not wrong, "\n".join(wrong)
    # It says something: half of the bounds lack little.
    least = {exact: 1e-4 if dtype != "float64" else 1e-11, further_passes: 0.01}.get(way, 0.7)
    assert math.isfinite(sum(told))
    assert np.median(told) < least

"""Filter scores along the samples, where these are a series in time at equal intervals.

The noise of neighboring samples is independent, and the signal mostly is not. The filter of least squared error of a
stationary series weights its neighbors (Wiener 1949, for discrete time as in Levinson 1947): h solves
``sum_j c(i - j) h(j) = s(i)`` for autocovariances c of the series and s of its signal, equal but for the variance of
the noise in c(0). They are measured around each window, so that the filter follows a series whose activity changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dpca.kernels.algebra.types import Array, blocks

#: Samples of a window, which have the same filter, and as many on both sides also measure its autocovariances.
WINDOW = 64
# Neighbors on each side that a filter weights.
_REACH = 4
# The share of the variance that is added to the diagonal, so that a constant series has a filter.
_RIDGE = 1e-6
# Series that are filtered together: their samples and weights in float64 stay in the cache.
_COLUMNS = 256


class Series(NamedTuple):
    """Samples ``start`` to ``stop`` of a series of ``n_samples``, given with those around them from ``first`` on."""

    first: int
    start: int
    stop: int
    n_samples: int

    @property
    def rows(self) -> int:
        """Number of samples of the range."""
        return self.stop - self.start


def context(start: int, stop: int, n_samples: int) -> tuple[int, int]:
    """Return the range of samples that the filtered scores of some samples depend on."""
    first, last = start // WINDOW * WINDOW - WINDOW, -(-stop // WINDOW) * WINDOW + WINDOW
    return max(0, min(first, n_samples - 3 * WINDOW)), min(n_samples, max(last, 3 * WINDOW))


def in_context(
    parts: Iterable[tuple[int, Array]], span: tuple[int, int], n_samples: int, rows: int
) -> Iterator[tuple[Series, Array]]:
    """Yield ranges of at least ``rows`` samples with those around them, from successive parts of a stack.

    Parameters
    ----------
    parts : iterable of (int, array)
        The first sample and the samples of each part, together those of `context`.
    span : tuple of int
        The samples (start, stop) of all ranges.
    n_samples : int
    rows : int
    """
    (start, end), whole = span, -(-rows // WINDOW) * WINDOW
    held, first = None, 0
    for at, part in parts:
        held, first = (part.copy(), at) if held is None else (np.concatenate([held, part]), first)
        while start < end:
            stop = min(start // WINDOW * WINDOW + whole, end)
            low, high = context(start, stop, n_samples)
            if high > first + len(held):
                break
            yield Series(low, start, stop, n_samples), held[low - first : high - first]
            start = stop
            low, _ = context(start, start + 1, n_samples)
            held, first = held[max(0, low - first) :], max(first, low)


def filtered(scores: Array, series: Series) -> Array:
    """Return filtered scores of the samples of a range. The filters depend on their place in the series only.

    Parameters
    ----------
    scores : array (m, k)
        Scores of the samples from ``series.first`` on, as far as `context` says, with noise of variance 1.
    series : Series
        One that is too short to measure is not filtered.
    """
    first, start, stop, n_samples = series
    if n_samples <= 4 * _REACH:
        return scores[start - first : stop - first]
    found = np.empty((stop - start, scores.shape[1]), scores.dtype)
    columns = list(blocks(scores.shape[1], _COLUMNS))
    for window, some in itertools.product(range(start // WINDOW * WINDOW, stop, WINDOW), columns):
        inner = max(window, start), min(window + WINDOW, stop)
        low, high = context(*inner, n_samples)
        values = scores[low - first : high - first, some].astype(np.float64)
        mean = values.mean(axis=0)
        values -= mean
        weights = _weights(values)
        # Reflected at the ends of the series. Elsewhere, the filter does not reach the samples that are added.
        around = np.pad(values, ((_REACH, _REACH), (0, 0)), mode="reflect")
        at, rows = inner[0] - low, inner[1] - inner[0]
        part = sum(weights[:, k] * around[at + k : at + k + rows] for k in range(2 * _REACH + 1))
        found[inner[0] - start : inner[1] - start, some] = mean + part
    return found


def _weights(values: Array) -> Array:
    """Return the weights (k, 2 reach + 1) of neighbors for centered series (m, k)."""
    m, length = len(values), 2 * _REACH + 1
    lags = np.stack([(values[: m - lag] * values[lag:]).sum(axis=0) / m for lag in range(length)], axis=-1)
    of_series = lags[:, np.abs(np.subtract.outer(np.arange(length), np.arange(length)))]
    of_signal = lags[:, np.abs(np.arange(-_REACH, _REACH + 1))]
    of_signal[:, _REACH] = np.maximum(of_signal[:, _REACH] - 1, 0)
    ridge = np.maximum(_RIDGE * lags[:, 0], np.finfo(np.float64).tiny)
    of_series = of_series + ridge[:, None, None] * np.eye(length)
    found: Array = np.linalg.solve(of_series, of_signal[..., None])[..., 0]
    return found

"""Effective sample size of time series."""

from __future__ import annotations

import numpy as np
import scipy.fft

from dpca.kernels.algebra.types import Array


def independent_samples(values: Array, of: str, others: Array | None = None) -> Array:
    """Return the effective number (K,) of independent samples of time series (n, K), for their "mean" or "variance".

    n_eff = n / (1 + 2 sum_j (1 - j / n) r_j). r_j is the autocorrelation, squared for a variance (Bayley & Hammersley
    1946; Bretherton, Widmann, Dymnikov, Wallace & Blade 1999, equations 30 and 31). For the covariances with ``others``
    (n, K), it is the product of both autocorrelations. The sum ends before the first even j with r_j + r_(j + 1) <= 0,
    because later terms are noise (Geyer 1992, section 3.3). Costs O(K n log n).
    """
    n, r = len(values), _autocorrelations(values)
    r = r * _autocorrelations(others) if others is not None else r ** (1 if of == "mean" else 2)
    summed = 2 * ((1 - np.arange(n) / n)[:, None] * r).sum(axis=0) - 1
    return np.clip(n / np.maximum(summed, 1e-300), 1, n)


def _autocorrelations(values: Array) -> Array:
    """Return the autocorrelations (n, K) of time series (n, K), 0 from the first ones on that are noise."""
    n = len(values)
    x = values - values.mean(axis=0)
    length = scipy.fft.next_fast_len(2 * n - 1, real=True)
    products = scipy.fft.irfft(np.abs(scipy.fft.rfft(x, length, axis=0)) ** 2, length, axis=0)[:n]
    # One sample determines a constant.
    r = np.divide(products, products[0], out=np.ones_like(products), where=products[0] > 0)
    if n % 2:
        r = np.concatenate([r, np.zeros_like(r[:1])])
    pairs = r[::2] + r[1::2]
    counted = np.repeat(np.logical_and.accumulate(pairs > 0, axis=0), 2, axis=0)[:n]
    return np.where(counted, r[:n], 0)

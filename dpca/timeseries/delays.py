"""Extended EOF analysis: modes over several successive samples, or multichannel singular spectrum analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import samples_to_fit
from dpca.models.linear.pca import PCA
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.timeseries.results import Modes, phase_factors
from dpca.timeseries.series import checked_modes, score_series


@dataclass(frozen=True, eq=False)
class ExtendedModes(Modes):
    """Modes over several lags; see `extended_eof`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    coefficients : array (n_modes, n_lags, K), float64
        Orthonormal over lags and K together. The largest entry is positive.
    lags : array (n_lags,), float64
        Time from the first map of a mode to each of its maps.
    scores : array (n - (n_lags - 1) * lag, n_modes), float64
        Time series of the modes, at the times of the first map.
    explained_variance : array (n_modes,), float64
        Variance of the scores (divisor: number of windows less 1), descending.
    explained_variance_ratio : array (n_modes,), float64
        The same divided by the total variance, including the part that the model discards.
    """

    lags: Array
    scores: Array
    explained_variance: Array
    explained_variance_ratio: Array

    dims: ClassVar[tuple[str, ...]] = ("mode", "lag")

    def _coords(self) -> dict[str, Any]:
        return {"lag": self.lags}


def extended_eof(
    scores: Any, n_modes: int, n_lags: int, *, lag: int = 1, model: Any = None, time: Any = None
) -> ExtendedModes:
    """Return extended EOFs: modes of windows of successive samples, for propagating patterns and oscillations.

    They are the principal components of windows of ``n_lags`` samples, ``lag`` apart (Weare & Nasstrom 1982; Broomhead
    & King 1986), computed from the scores. For extended EOFs of the field itself, fit an estimator to `lagged`.

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    n_modes : int
        At most n_lags * K, and at most the number of windows less 1.
    n_lags : int
        Samples of a window, the embedding dimension.
    lag : int
        Steps between the samples of a window.
    model : fitted estimator, optional
        The model of the scores.
    time : float or array (n,), optional
        See `dpca.timeseries.spectrum`.

    Returns
    -------
    ExtendedModes
        Each lag is centered by its own mean. Costs as much as `dpca.PCA` for n samples of n_lags * K attributes.

    Raises
    ------
    DataError
        If steps vary, a window is longer than the record, or n_modes is out of range.
    """
    given = score_series(scores, model, time)
    n, k = given.values.shape
    n_lags, lag = whole_number(n_lags, "n_lags", 1), whole_number(lag, "lag", 1)
    span = (n_lags - 1) * lag + 1
    if span >= n:
        raise DataError(
            f"n_lags is {n_lags} and lag is {lag}, a window of {span:,} samples, but the record has {n:,}: give fewer "
            f"or shorter lags"
        )
    m = checked_modes(n_modes, min(n - span, n_lags * k), f"{n - span + 1:,} windows of {n_lags} x {k} values")
    windows = np.lib.stride_tricks.sliding_window_view(given.values, span, axis=0)[..., ::lag].swapaxes(1, 2)
    found = PCA(m, solver="dual" if len(windows) < n_lags * k else "covariance").fit(windows)
    signs = phase_factors(found.components_)
    return ExtendedModes(
        coefficients=(found.components_ * signs).reshape(m, n_lags, k),
        lags=np.arange(n_lags) * lag * given.step,
        scores=found.transform(windows) * signs.T,
        explained_variance=found.explained_variance_,
        explained_variance_ratio=given.share * found.explained_variance_ratio_,
        share=given.share,
        _grid=given.grid,
    )


def lagged(x: Any, n_lags: int, *, lag: int = 1) -> LaggedSource:
    """Return the windows of a stack as samples for any ``fit``. This yields exact extended EOFs without a copy.

    Parameters
    ----------
    x : array (n, *sample_shape), Stack, path or DataArray
        Any input of ``fit``, with samples in the order of time.
    n_lags, lag : int
        As for `extended_eof`.

    Returns
    -------
    Source
        Of shape (n - (n_lags - 1) * lag, n_lags, *sample_shape). Each task creates its windows when it reads them. For
        few large samples, `PCA` and `StreamingPCA` read the samples themselves, by blocks of attributes.

    Raises
    ------
    DataError
        If a window is longer than the record.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import StreamingPCA
    >>> from dpca.timeseries import lagged
    >>> waves = np.sin(np.arange(90)[:, None] / 9 - np.arange(20))
    >>> model = StreamingPCA(2, n_passes=2, random_state=0).fit(lagged(waves, 5))
    >>> model.sample_shape_
    (5, 20)
    """
    source = as_source(samples_to_fit(x, None)[0])
    return LaggedSource(source, whole_number(n_lags, "n_lags", 1), whole_number(lag, "lag", 1))

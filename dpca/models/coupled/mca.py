"""MCA: maximum covariance analysis of two fields of any size."""

from __future__ import annotations

from typing import ClassVar

from sklearn.base import BaseEstimator

from dpca.models.base.docs import documented
from dpca.models.coupled.coupled_model import CoupledModel
from dpca.parameters.coupled import MCAParameters


@documented()
class MCA(MCAParameters, CoupledModel, BaseEstimator):  # type: ignore[misc]
    """Maximum covariance analysis of two fields (Bretherton, Smith & Wallace 1992; Cheng & Dunkerton 1995).

    The modes are the singular vectors of the cross-covariance of both fields: pairs of patterns of unit length whose
    scores have the largest covariance. Each field is prepared as in `EOF`, and may be larger than memory.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    singular_values_ : xarray.DataArray (mode,), or array, float64
        Covariance of the scores of both fields (divisor n - 1), descending.
    squared_covariance_fraction_, covariance_fraction_, correlation_ : the same
        Share of the total squared covariance; share of the singular values of these modes; correlation of the scores of
        both fields.
    explained_variance_ratio_ : tuple of two, the same
        Share of the variance of each field that its scores explain, of what the principal components retain.
    total_squared_covariance_ : float
        Sum of the squares of the covariances of all pairs of grid points, of what the principal components retain.
    pca_variance_ratio_ : tuple of two float
        Share of the variance of each field that its principal components retain; 1 if none are omitted.
    n_samples_seen_ : int
    sample_shapes_ : tuple of two tuples of int

    Notes
    -----
    For d = d_x + d_y grid points, a pass costs O(n d^2) operations and 8 d^2 bytes with the solver "covariance", and
    O(n^2 d) and 8 n^2 bytes with "dual". Sums of "covariance" over 8-bit and 16-bit integers without weights are exact:
    modes are then bit-identical for any chunks and workers. `save` stores the scores if computed, and no samples.
    {where}

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from dpca import MCA
    >>> rng = np.random.default_rng(0)
    >>> index = rng.normal(size=(80, 1, 1))
    >>> sst = xr.DataArray(index + rng.normal(size=(80, 5, 6)), dims=("time", "lat", "lon"))
    >>> rain = xr.DataArray(rng.normal(size=(80, 9)) - index[..., 0], dims=("time", "station"))
    >>> mca = MCA(2).fit(sst, rain)
    >>> x, y = mca.patterns()
    >>> x.dims, y.dims, bool(mca.squared_covariance_fraction_[0] > 0.8)
    (('mode', 'lat', 'lon'), ('mode', 'station'), True)
    """

    store_kind: ClassVar[str] = "mca"
    whitens: ClassVar[bool] = False

"""MCA: maximum covariance analysis of two fields of any size."""

from __future__ import annotations

from typing import ClassVar

from sklearn.base import BaseEstimator

from dpca.models.base.docs import COUPLED, documented
from dpca.models.coupled.coupled_model import CoupledModel
from dpca.parameters.coupled import MCAParameters


@documented(**COUPLED)
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
    {attributes}

    Notes
    -----
    {costs}

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

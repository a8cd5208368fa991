"""CCA: canonical correlation analysis of two fields of any size."""

from __future__ import annotations

from typing import ClassVar

from sklearn.base import BaseEstimator

from dpca.models.base.docs import COUPLED, documented
from dpca.models.coupled.coupled_model import CoupledModel
from dpca.parameters.coupled import CCAParameters


@documented(**COUPLED)
class CCA(CCAParameters, CoupledModel, BaseEstimator):  # type: ignore[misc]
    """Canonical correlation analysis of the principal components of two fields (Barnett & Preisendorfer 1987).

    The modes are pairs of linear combinations of the leading principal components of both fields, the scores, that have
    the largest correlation. Scores have unit variance (divisor n) and are uncorrelated within each field. Patterns are
    the covariances of the field with them. Each field is prepared as in `EOF`, and may be larger than memory.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    singular_values_ : xarray.DataArray (mode,), or array, float64
        Covariance of the scores of both fields (divisor n - 1), descending: the canonical correlations, which are
        ``correlation_``, times n / (n - 1).
    {attributes}

    Notes
    -----
    {costs}

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from dpca import CCA
    >>> rng = np.random.default_rng(0)
    >>> index = rng.normal(size=(80, 1, 1))
    >>> sst = xr.DataArray(index + rng.normal(size=(80, 5, 6)), dims=("time", "lat", "lon"))
    >>> rain = xr.DataArray(rng.normal(size=(80, 9)) - index[..., 0], dims=("time", "station"))
    >>> cca = CCA(2, n_pca_modes=4).fit(sst, rain)
    >>> x, y = cca.scores()
    >>> x.dims, bool(cca.correlation_[0] > 0.9)
    (('time', 'mode'), True)
    """

    store_kind: ClassVar[str] = "cca"
    whitens: ClassVar[bool] = True

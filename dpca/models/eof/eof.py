"""EOF: empirical orthogonal functions of fields of any size, with weights, masks, climatologies and trends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import Callback, FitCallbacks, may_end_early
from dpca.models.base.docs import documented
from dpca.models.base.labelled import Labels
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.parameters import also_called, check_parameters
from dpca.models.base.passes import run_of_fit
from dpca.models.eof import significance
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.eof_fit import FittedAnomalies, Fitting, batch_rows, counted
from dpca.models.eof.eof_store import StoredEOF
from dpca.models.eof.fields import Field, FieldNames, attributes_of, scale_of, series_given
from dpca.models.eof.projection import field_of, maps_of, scores_of
from dpca.models.eof.rotation import RotatedEOF, rotated
from dpca.models.eof.variables import field_given, merged_exactly
from dpca.models.linear.pca import PCA
from dpca.models.linear.pca_solvers import SOLVERS
from dpca.models.streaming.streaming_methods import default_method
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.parameters.eof import STREAMING, EOFParameters
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.readers.base import require
from dpca.storage.run import Run

#: What results are, in their metadata.
EOFS, PCS = "empirical orthogonal functions", "principal components"


@documented()
class EOF(EOFParameters, StoredEOF, BaseEstimator):  # type: ignore[misc]
    """Empirical orthogonal functions of a field in time (Lorenz 1956; Hannachi, Jolliffe & Stephenson 2007).

    The modes are the components of weighted anomalies. EOF excludes grid points without data, subtracts the mean (or
    climatology and trend) and multiplies by weights, a block at a time: the field may be larger than memory. If a task
    cannot hold some maps, the Gram matrix of the samples gives the exact modes, by blocks of grid points.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    explained_variance_, explained_variance_ratio_ : xarray.DataArray (mode,), or array, float64
        Eigenvalues of the covariance of the weighted anomalies (divisor n - 1); the same by the total variance.
    total_variance_ : float
    captured_bound_ : float
        Certificate: the modes capture at least this share of the optimum; see `StreamingPCA` and `PCA`.
    model_ : StreamingPCA or PCA
        The model of the anomalies at grid points with data.
    n_samples_seen_ : int
        Number of samples with data.
    n_places_ : int
        Number of analyzed grid points.
    sample_shape_ : tuple of int
        Of several variables, (number of all grid points,).

    Notes
    -----
    A pass costs that of `StreamingPCA` over the values at grid points with data. Missing values, ``standardize``,
    ``detrend`` and ``climatology`` take one more, ``"iterate"`` one for each of a few dozen fits. Memory: that of
    `StreamingPCA`, 2 bytes a sample, and 8 with ``detrend``; in this process up to about 12 maps in float64. Large
    fields, of more than 64 MiB in float64, take about two, and the modes; their statistics are in temporary files.
    `save` stores no samples; it stores `pcs` if computed.
    {where}

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from dpca import EOF
    >>> values = np.random.default_rng(0).normal(size=(60, 9, 12))
    >>> values[:, 2:4, 5:8] = np.nan  # land
    >>> sst = xr.DataArray(values, {"lat": np.linspace(-60, 60, 9)}, ("time", "lat", "lon"))
    >>> eof = EOF(3, weights="coslat").fit(sst)
    >>> eof.eofs().dims, eof.pcs().dims
    (('mode', 'lat', 'lon'), ('time', 'mode'))
    """

    store_kind: ClassVar[str] = "eof"

    @also_called("sample_dim", "dim")
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        dim: str | None = None,
        key: str | None = None,
        run: Run = Run(),
        callback: Callback | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
    ) -> Self:
        """Find the modes.

        Parameters
        ----------
        X : DataArray, Dataset, array (n_samples, *sample_shape), Stack, path or Source; or several in a list or dict
            An ``xarray.DataArray`` in memory or in Dask; the variables of a ``Dataset``, as xarray opens it from
            netCDF, Zarr or GRIB; or any input of `PCA.fit`. Several variables, in a ``Dataset``, a list of arrays or a
            dict, are analyzed together: each mode has a map of each variable, in the form in which they were given.
            They have the same samples, and any shapes.
        y : ignored
        sample_weight : array_like (n_samples,), optional
            How often each sample counts, as in `PCA.fit`; also in climatologies, trends and standard deviations. The
            solver "streaming" requires whole numbers; for others, the solver is "auto".
        dim : str, optional
            The parameter ``dim`` once more, as in xeofs, or ``sample_dim``, as in other estimators.
        key : str or sequence of str, optional
            The name of the variable, or several names. Required if a file has several.
        run : Run
            As in `StreamingPCA.fit`. Checkpoints require an integer ``random_state``.
        callback, max_seconds, max_samples
            As in `StreamingPCA.fit`. `dpca.Progress` contains the EOF analysis of the samples so far.

        Warns
        -----
        GapWarning
            If grid points that miss some values are excluded.

        Raises
        ------
        DataError
            If the data lack the dim, or have no values or fewer than 2 samples; or for invalid weights, latitudes or
            dates.
        PlanError
            If the state and a batch do not fit into the memory budget.
        """
        check_parameters(self)
        if self.solver not in (known := (STREAMING, "auto", *SOLVERS)):
            raise DataError(f"solver is {self.solver!r}: choose one of {', '.join(known)}")
        if dim is not None and dim != self.dim:
            raise DataError(f"dim is {dim!r} in fit() but {self.dim!r} in the estimator: use EOF(..., dim={dim!r})")
        given = field_given(X, self.dim, key, missing=self.missing_value)
        n, *shape = given.source.shape
        if n < 2:
            raise DataError(f"there is {n} sample along {given.dim!r}: a fit requires at least 2 samples")
        used, fractions = counted(given, sample_weight, fill=self.gaps == "interpolate")
        calendar = Calendar.of(used.along, used.source.shape[0], used.dim, self.climatology, bool(self.detrend))
        callbacks = FitCallbacks.requested(self, callback, max_seconds, max_samples)
        how = given.weights(self.weights, tuple(shape)), run_of_fit(run, self.memory_budget), callbacks
        fitting = Fitting(self, used, calendar, *how, None if used is given else given, fractions)
        with may_end_early(self, callbacks):
            self._set_fitted(fitting.fitted(), given, calendar, n)
        return self

    @property
    def explained_variance_(self) -> Any:
        """Variance of each mode, with the numbers of modes if the field had names."""
        return self._given.by_mode(self.model_.explained_variance_, "explained_variance")

    @property
    def explained_variance_ratio_(self) -> Any:
        """Share of the total variance of each mode, with the numbers of modes if the field had names."""
        return self._given.by_mode(self.model_.explained_variance_ratio_, "explained_variance_ratio")

    def eofs(self, scaling: int = 0) -> Any:
        """Return the modes as maps (n_modes, *sample_shape), NaN at grid points without data.

        Several variables come back in the form in which they were given: a ``Dataset``, a list or a dict.

        Parameters
        ----------
        scaling : int
            0: unit length over all grid points. 1: divided by the square root of the eigenvalue. 2: multiplied by it.
            The maps are modes of the weighted anomalies, as in eofs and xeofs.

        Returns
        -------
        xarray.DataArray (mode, ...), or array
            A ``DataArray`` with the coordinates of the field if its dims had names. Modes are numbered from 1. It is
            lazy if the modes of a large field are on disk.
        """
        check_is_fitted(self, "model_")
        maps = maps_of(self._anomalies, self.model_.basis_, self._scale(scaling))
        return self._given.maps(maps, "eofs", self._attributes_of(EOFS, scaling == 2))

    def pcs(self, scaling: int = 0) -> Any:
        """Return the principal component time series (n_samples, n_modes) of the fit. The first call reads the samples.

        Parameters
        ----------
        scaling : int
            0: projections on modes of unit length. 1: these divided, 2: multiplied by the root of the eigenvalue.

        Returns
        -------
        xarray.DataArray (dim, mode), or array
            NaN for samples without values, and for those of weight 0 that miss some.
        """
        check_is_fitted(self, "model_")
        if self._pcs is None:
            if not isinstance(self._given, Field):
                raise DataError("this store has no PC time series: call pcs() before save(), or project() the samples")
            found = self._projected(self._given, skip_gaps=self._weighted)
            self._pcs = np.asarray(found.compute() if isinstance(found, da.Array) else found)
        scaled = self._pcs * self._scale(scaling).astype(self._pcs.dtype)
        return self._given.series(scaled, self._attributes(PCS, scaling == 0))

    def project(self, X: Any, *, key: str | None = None) -> Any:
        """Return the scores (n_samples, n_modes) of any samples.

        Mean, climatology, trend, standard deviation, weights and grid points with data are those of the fit.

        Parameters
        ----------
        X, key
            As in `fit`, on the same grid; with dates if the fit used dates.

        Returns
        -------
        xarray.DataArray (dim, mode), or array
            Lazy for Dask arrays. Costs 2 n d k operations.

        Raises
        ------
        DataError
            If the grid differs, or values are missing at grid points with data and ``gaps`` is "drop".
        """
        check_is_fitted(self, "model_")
        given = field_given(X, self.dim, key, self._given, self.missing_value)
        if given.source.shape[1:] != self.sample_shape_:
            raise DataError(f"samples have shape {given.source.shape[1:]}: give {self.sample_shape_}, as in the fit")
        self._calendar.check(given.along, self._given.along, always=True)
        return given.series(self._projected(given), self._attributes(PCS, True))

    def reconstruct(self, pcs: Any = None, n_modes: int | None = None) -> Any:
        """Return the reconstruction of the field from PC time series, in its units, NaN at grid points without data.

        Parameters
        ----------
        pcs : DataArray (dim, mode) or array (m, n_modes), optional
            As returned by `project`. Default: the PC time series of the fit. An array without coordinates must have
            all times of the fit.
        n_modes : int, optional
            Number of leading modes to use; default all.

        Returns
        -------
        xarray.DataArray (dim, ...), or array
            Lazy if the modes of a large field are on disk, otherwise in memory: select times beforehand if there are
            many. Costs 2 m d k operations.
        """
        check_is_fitted(self, "model_")
        pcs = self.pcs() if pcs is None else pcs
        k = len(self.explained_variance_) if n_modes is None else whole_number(n_modes, "n_modes", 1)
        named, dim = is_labelled(pcs), self._given.dim
        values = series_given(pcs, dim, k)
        groups, trend = self._calendar.given(
            pcs.coords.get(dim) if named else self._given.along, values, self._given.along
        )
        return self._given.field(field_of(self._anomalies, self.model_.basis_, values[:, :k], groups, trend), pcs)

    def to_xarray(self, scaling: int = 0) -> Any:
        """Return maps, time series and variances as an ``xarray.Dataset``, which ``to_netcdf`` writes to a file.

        Parameters
        ----------
        scaling : int
            Of the time series, as in `pcs`. The maps are those that give the field with them.

        Returns
        -------
        xarray.Dataset
            "eofs", "pcs", "explained_variance" and "explained_variance_ratio". For several variables, the maps have
            their names.

        Raises
        ------
        DataError
            If the dims of a field had no names, variables have dims of one name with different coordinates, or xarray
            is not installed.
        """
        check_is_fitted(self, "model_")
        require("xarray", "xarray", "a field with names")
        if not self._given.named:
            raise DataError("the field had no names of dims: fit an xarray.DataArray")
        pcs = self.pcs(scaling)
        maps = self.eofs({0: 0, 1: 2, 2: 1}[scaling])
        parts = [*self._given.merged(maps), pcs, self.explained_variance_, self.explained_variance_ratio_]
        return merged_exactly(parts, "drop")

    def rotate(
        self, method: str = "varimax", n_modes: int | None = None, *, kaiser: bool = True, power: int = 4
    ) -> RotatedEOF:
        """Return the modes rotated to simple structure; see `dpca.models.eof.rotation.rotated`."""
        k = len(self.explained_variance_) if n_modes is None else whole_number(n_modes, "n_modes", 2)
        return rotated(self, method, k, kaiser, power)

    def north_test(self, *, n_eff: bool = True) -> Any:
        """Return standard errors and separation of the eigenvalues; see `dpca.models.eof.significance.north_test`.

        With ``n_eff``, the effective number of samples follows from the autocorrelation of the PC time series. This
        reads the data once for `pcs`.
        """
        check_is_fitted(self, "model_")
        pcs = self._used_pcs() if n_eff else None
        found = significance.north_test(self.model_.explained_variance_, self.n_samples_seen_, pcs)
        return self._given.table(found)

    def rule_n(self, *, n_trials: int = 1000, level: float = 0.95) -> Any:
        """Return which modes explain more variance than noise does; see `dpca.models.eof.significance.rule_n`."""
        check_is_fitted(self, "model_")
        shares, sizes = self.model_.explained_variance_ratio_, (self.n_samples_seen_, self.n_places_)
        return self._given.table(significance.rule_n(shares, *sizes, n_trials, level, self._seed()))

    def bootstrap(self, *, n_trials: int = 1000, level: float = 0.95, block_length: int = 1) -> Any:
        """Return the variation of the modes under resampling; see `dpca.models.eof.significance.bootstrap`."""
        check_is_fitted(self, "model_")
        found = significance.bootstrap(self._used_pcs(), n_trials, level, block_length, self._seed())
        return self._given.table(found)

    # -- internals

    def _set_fitted(
        self, found: FittedAnomalies, given: FieldNames, calendar: Calendar, n: int, pcs: Array | None = None
    ) -> None:
        self.model_, self._anomalies, self._expected = found.model, found.anomalies, found.expected
        self._given, self._calendar, self._n_given, self._pcs = given, calendar, n, pcs
        self._weighted = found.weighted
        self.total_variance_, self.captured_bound_ = found.model.total_variance_, found.model.captured_bound_
        self.n_samples_seen_, self.n_places_ = found.n_used, found.anomalies.n_places
        self.sample_shape_ = found.anomalies.sample_shape

    def _model(self, n: int, d: int, n_passes: int | None, *, any_weights: bool = False) -> LinearModel:
        """Return an unfitted estimator for n samples of d grid points."""
        if self.n_modes > min(n, d):
            raise DataError(
                f"n_modes is {self.n_modes} but there are {n:,} samples of {d:,} grid points with data: give at most "
                f"{min(n, d):,}"
            )
        common: dict[str, Any] = {"random_state": self.random_state, "memory_budget": self.memory_budget}
        if self.solver != STREAMING or any_weights:
            return PCA(self.n_modes, solver="auto" if self.solver == STREAMING else self.solver, **common)
        exact = default_method(self.n_modes, d, {"oversampling": self.oversampling}) == "covariance"
        passes = 1 if exact else self.n_passes if n_passes is None else n_passes
        size = min(n, batch_rows(d)) if self.batch_size is None else self.batch_size
        own: dict[str, Any] = {"batch_size": size, "oversampling": self.oversampling}
        return StreamingPCA(self.n_modes, n_passes=passes, **own, **common)

    def _model_of_few(self, n: int, d: int) -> LinearModel | None:
        """Return the exact estimator of few samples if the solver "streaming" exceeds the memory; None if it cannot.

        Its result is that of any number of passes. It has neither batches nor oversampling.
        """
        if self.solver != STREAMING or n > d or self.batch_size or self.oversampling is not None:
            return None
        return PCA(self.n_modes, solver="dual", random_state=self.random_state, memory_budget=self.memory_budget)

    def _seed(self) -> int:
        return self.model_._seed()

    def _scale(self, scaling: int) -> Array:
        return scale_of(self.model_.explained_variance_, scaling)

    def _attributes_of(self, what: str, in_units: bool) -> Callable[[Labels | None], dict[str, Any]]:
        by_array = not (self.weights is None or isinstance(self.weights, str))
        return attributes_of(what, keep_units=in_units and not self.standardize and not by_array)

    def _attributes(self, what: str, in_units: bool) -> dict[str, Any]:
        return self._attributes_of(what, in_units)(self._given.labels)

    def _projected(self, given: Field, *, skip_gaps: bool = False) -> Any:
        how: dict[str, Any] = {"expected": self._expected, "skip_gaps": skip_gaps}
        parts = given, self._calendar, self._anomalies, self.model_.basis_
        return scores_of(*parts, interpolates=self.gaps == "interpolate", **how)

    def _used_pcs(self) -> Array:
        significance.require_unweighted(self._weighted)
        found: Array = np.asarray(self.pcs(), np.float64)
        return found[~np.isnan(found).any(axis=1)]

"""EOF: empirical orthogonal functions of fields in time, weighted, masked, without seasons and trends, of any size."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpca.engine.checkpoint import Checkpoints
from dpca.kernels.types import Array
from dpca.models import significance
from dpca.models.anomalies import AnomalySource, projected
from dpca.models.calendar import Calendar
from dpca.models.docs import documented
from dpca.models.eof_fit import GAPS, Fitted, Fitting, interpolated, longest_gap
from dpca.models.eof_store import StoredEOF
from dpca.models.fields import MODE, Field, Names, on_grid, scale_of, series_given
from dpca.models.gaps import FilledSource
from dpca.models.linear_model import LinearModel
from dpca.models.parameters import check_parameters
from dpca.models.pca import PCA
from dpca.models.pca_solvers import SOLVERS
from dpca.models.rotation import RotatedEOF, rotated
from dpca.models.streaming_methods import default_method
from dpca.models.streaming_pca import StreamingPCA
from dpca.models.watching import Callback, Watching, watched
from dpca.models.weights import field_weights
from dpca.representation.lazy import default_client
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.labelled import is_labelled
from dpca.storage.progress import Progress, no_progress

#: The solver that reads the data a few times, in any order and memory that does not grow.
STREAMING = "streaming"
# A batch of anomalies takes about so many bytes, and no fewer rows than an update does well with: of larger ones, which
# cost no less, several are held at a time.
_BATCH_BYTES, _FEWEST_ROWS, _BATCH_ROWS = 2**25, 100, 1024


@documented()
@dataclass(eq=False, repr=False)
class EOF(StoredEOF, BaseEstimator):  # type: ignore[misc]
    """Empirical orthogonal functions of a field in time (Lorenz 1956; Hannachi, Jolliffe & Stephenson 2007).

    Places without data are found and left out, the field's mean (or climatology, and trend) is subtracted, each place
    is weighted, and the components of what is left are the modes. All of that happens where the data is read: nothing
    is copied, and the field may be larger than memory.

    Parameters
    ----------
    n_modes : int
        Modes to find.
    dim : str
        The dim along which samples follow each other. Without names of dims it is the first axis.
    weights : None, "coslat" or array
        What multiplies the anomalies at each place: "coslat" the root of the cosine of its latitude, so that the
        variance counts by area; an array that numpy can broadcast to a sample, or a ``DataArray`` with some of its
        dims.
    gaps : str
        Places that never have a value are left out without a word. Of places with some values missing: "drop" leaves
        these out, too, and says how many they are (`GapWarning`); "interpolate" fills them along ``dim``, by the
        coordinate; "iterate" fills them by what the modes expect, and repeats the fit until both agree (Beckers &
        Rixen 2003; Tipping & Bishop 1999). Samples without any value count nowhere, and have NaN for scores; only
        "interpolate" fills them.
    standardize : bool
        Divide the anomalies at each place by their standard deviation (divisor n).
    detrend : bool
        Subtract the linear trend of each place along the coordinate of ``dim``.
    climatology : None, "month", "season", "dayofyear" or "hour"
        Subtract the mean of each part of the year, or of the day, in the place of that of all samples.
    n_passes : int
        Passes of the solver "streaming", after which ``captured_bound_`` lacks little where there is a gap in the
        spectrum; see `StreamingPCA`. Where it holds the covariance, one pass is exact.
    solver : str
        "streaming", by `StreamingPCA`; or a solver of `PCA`: "auto", "covariance", "dual", "randomized" and others.
    batch_size, oversampling : int, optional
        Of the solver "streaming"; by default a batch takes 32 MiB in float32, but has 100 to 1,024 samples.
    random_state : int, RandomState or None
        Seed of what is drawn at random.
    {memory_budget}

    Attributes
    ----------
    explained_variance_, explained_variance_ratio_ : array (n_modes,), float64
        Eigenvalues of the covariance of the weighted anomalies (divisor n - 1), and their shares of the total variance.
    total_variance_ : float
    captured_bound_ : float
        Certificate: the modes capture at least this share of what the best ones would; see `StreamingPCA` and `PCA`.
    model_ : StreamingPCA or PCA
        The components of the anomalies at places with data.
    n_samples_seen_ : int
        Samples with data.
    n_places_ : int
        Places with data, which are analyzed.
    sample_shape_ : tuple of int

    Notes
    -----
    A pass over the data costs what `StreamingPCA` does for as many values as there are at places with data. A survey
    comes before where ``standardize``, ``detrend`` or ``climatology`` ask for statistics, or some values are missing.
    Filling by modes takes a pass for each of some tens of fits. Memory: that of `StreamingPCA`, 2 bytes a sample, and 8
    more with ``detrend``. What `save` writes has the time functions where `pcs` was called before; no samples are kept.
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

    n_modes: int
    _: KW_ONLY
    dim: str = "time"
    weights: Any = None
    gaps: str = "drop"
    standardize: bool = False
    detrend: bool = False
    climatology: str | None = None
    n_passes: int = 2
    solver: str = STREAMING
    batch_size: int | None = None
    oversampling: int | None = None
    random_state: Any = None
    memory_budget: int | None = None

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        dim: str | None = None,
        key: str | None = None,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
        callback: Callback | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
    ) -> Self:
        """Find the modes.

        Parameters
        ----------
        X : DataArray, Dataset, array (n_samples, *sample_shape), Stack, path or Source
            An ``xarray.DataArray`` in memory or in Dask, or the variable ``key`` of a ``Dataset``, as xarray opens it
            from netCDF, Zarr or GRIB; or what `PCA.fit` takes.
        y : ignored
        dim, key : str, optional
            The parameter ``dim`` again, as xeofs has it here; and which variable is meant, where there are several.
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from; takes an integer ``random_state``.
        progress : Progress, optional
            Told the bytes read in each pass.
        callback, max_seconds, max_samples
            As in `StreamingPCA.fit`: `dpca.Progress` holds the analysis of the samples so far.

        Warns
        -----
        GapWarning
            Where places are left out that miss some values.

        Raises
        ------
        DataError
            For data without the dim, without values, of fewer than 2 samples; for weights, latitudes and dates that
            make no sense.
        PlanError
            When the state and a batch do not fit the memory budget.
        """
        self._check()
        if dim is not None and dim != self.dim:
            raise DataError(f"dim is {dim!r} here and {self.dim!r} in the estimator: give EOF(..., dim={dim!r})")
        given = Field.of(X, self.dim, key)
        n, *shape = given.source.shape
        if n < 2:
            raise DataError(f"{n} sample along {given.dim!r} has no variance: a fit needs at least 2")
        calendar = Calendar.of(given.along, n, given.dim, self.climatology, bool(self.detrend))
        running = {"client": client or default_client(), "checkpoints": checkpoints, "progress": progress}
        watching = Watching.asked(self, callback, max_seconds, max_samples)
        how = field_weights(self.weights, given.labels, tuple(shape)), running, watching
        fitting = Fitting(self, given, calendar, *how)
        return watched(self, watching, lambda: self._learned(fitting.run(), given, calendar, n))

    def eofs(self, scaling: int = 0) -> Any:
        """Return the modes as maps (n_modes, *sample_shape), NaN at places without data.

        Parameters
        ----------
        scaling : int
            0: of length 1 over all places; 1: divided, 2: multiplied by the root of the eigenvalue. They are modes of
            the weighted anomalies, as those of eofs and xeofs.

        Returns
        -------
        xarray.DataArray (mode, ...), or array
            With the coordinates of the field, where it had names; modes count from 1.
        """
        check_is_fitted(self, "model_")
        scale = self._scale(scaling)
        maps = self._anomalies.placed(self.model_.components_ * scale[:, None].astype(self.model_.components_.dtype))
        return on_grid(maps, self._given.labels, "eofs", self._attributes(scaling == 2))

    def pcs(self, scaling: int = 0) -> Any:
        """Return the time functions (n_samples, n_modes) of the samples of the fit; the first call reads these.

        Parameters
        ----------
        scaling : int
            0: projections on modes of length 1; 1: divided by the root of the eigenvalue, of variance 1; 2: multiplied.

        Returns
        -------
        xarray.DataArray (dim, mode), or array
            NaN for samples without values.
        """
        check_is_fitted(self, "model_")
        if self._pcs is None:
            if not isinstance(self._given, Field):
                raise DataError("this store has no time functions, as save() came before pcs(): project() the samples")
            found = self._projected(self._given)
            self._pcs = np.asarray(found.compute() if isinstance(found, da.Array) else found)
        scaled = self._pcs * self._scale(scaling).astype(self._pcs.dtype)
        return self._given.series(scaled, self._attributes(scaling == 0))

    def project(self, X: Any, *, key: str | None = None) -> Any:
        """Return the scores (n_samples, n_modes) of samples, of the fit or others.

        What was subtracted and divided by in the fit is so here. Places without data in the fit are not looked at.

        Parameters
        ----------
        X, key
            As in `fit`, on the same grid; with dates, where the fit used these.

        Returns
        -------
        xarray.DataArray (dim, mode), or array
            Lazy for Dask arrays. Costs 2 n d k operations.

        Raises
        ------
        DataError
            For another grid, or values missing at places with data, unless ``gaps`` says how to fill them.
        """
        check_is_fitted(self, "model_")
        given = Field.of(X, self.dim, key, self._given.labels if is_labelled(X) else None)
        if given.source.shape[1:] != self.sample_shape_:
            raise DataError(f"samples have shape {given.source.shape[1:]} but the fit had {self.sample_shape_}")
        self._calendar.check(given.along, self._given.along, always=True)
        return given.series(self._projected(given), self._attributes(True))

    def reconstruct(self, pcs: Any = None, n_modes: int | None = None) -> Any:
        """Return the field that time functions stand for, in its own units, NaN at places without data.

        Parameters
        ----------
        pcs : DataArray (dim, mode) or array (m, n_modes), optional
            As `project` gives them; default those of the fit. An array has the times of the fit, all of them.
        n_modes : int, optional
            Use only so many of the first modes; default all.

        Returns
        -------
        xarray.DataArray (dim, ...), or array
            In memory: choose times beforehand where the field is large. Costs 2 m d k operations.
        """
        check_is_fitted(self, "model_")
        pcs = self.pcs() if pcs is None else pcs
        k = len(self.explained_variance_) if n_modes is None else whole_number(n_modes, "n_modes", 1)
        named, dim = is_labelled(pcs), self._given.dim
        values = series_given(pcs, dim, k)
        groups, trend = self._calendar.given(
            pcs.coords.get(dim) if named else self._given.along, values, self._given.along
        )
        rows = values[:, :k] @ self.model_.components_[:k] + self.model_.mean_.astype(values.dtype)
        field = self._anomalies.placed(self._anomalies.back(rows, groups, trend))
        labels = self._given.labels
        if labels is None or not named:
            return field
        found = on_grid(field, labels, labels.name or "reconstruction", labels.attrs).drop_vars(MODE)
        found = found.rename({MODE: self._given.dim}).assign_coords(pcs.drop_vars(MODE, errors="ignore").coords)
        return found.transpose(*labels.order) if {*found.dims} == {*labels.order} else found

    def rotate(
        self, method: str = "varimax", n_modes: int | None = None, *, kaiser: bool = True, power: int = 4
    ) -> RotatedEOF:
        """Return the modes rotated to simple structure; see `dpca.models.rotation.rotated`."""
        k = len(self.explained_variance_) if n_modes is None else whole_number(n_modes, "n_modes", 2)
        return rotated(self, method, k, kaiser, power)

    def north_test(self, *, n_eff: bool = True) -> Any:
        """Return the standard error of each eigenvalue, and which are apart; see `dpca.models.significance.north_test`.

        With ``n_eff``, samples count as far as the time functions make them independent, which reads the data once
        for `pcs`.
        """
        check_is_fitted(self, "model_")
        return significance.north_test(
            self.explained_variance_, self.n_samples_seen_, self._used_pcs() if n_eff else None
        )

    def rule_n(self, *, n_trials: int = 1000, level: float = 0.95) -> Any:
        """Return which shares of variance noise does not reach; see `dpca.models.significance.rule_n`."""
        check_is_fitted(self, "model_")
        shares, sizes = self.explained_variance_ratio_, (self.n_samples_seen_, self.n_places_)
        return significance.rule_n(shares, *sizes, n_trials, level, self._seed())

    def bootstrap(self, *, n_trials: int = 1000, level: float = 0.95, block_length: int = 1) -> Any:
        """Return how modes vary between samples drawn anew; see `dpca.models.significance.bootstrap`."""
        check_is_fitted(self, "model_")
        return significance.bootstrap(self._used_pcs(), n_trials, level, block_length, self._seed())

    # -- inside

    def _learned(self, found: Fitted, given: Names, calendar: Calendar, n: int, pcs: Array | None = None) -> None:
        self.model_, self._anomalies, self._expected = found.model, found.anomalies, found.expected
        self._given, self._calendar, self._n_given, self._pcs = given, calendar, n, pcs
        self.explained_variance_ = found.model.explained_variance_
        self.explained_variance_ratio_ = found.model.explained_variance_ratio_
        self.total_variance_, self.captured_bound_ = found.model.total_variance_, found.model.captured_bound_
        self.n_samples_seen_, self.n_places_ = found.n_used, len(found.anomalies.places)
        self.sample_shape_ = found.anomalies.sample_shape

    def _check(self) -> None:
        check_parameters(self)
        whole_number(self.n_modes, "n_modes", 1)
        whole_number(self.n_passes, "n_passes", 1)
        for name, known in (("gaps", GAPS), ("solver", (STREAMING, "auto", *SOLVERS))):
            if getattr(self, name) not in known:
                raise DataError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(known)}")
        for name in ("standardize", "detrend"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise DataError(f"{name} is {getattr(self, name)!r}: give True or False")
        if not isinstance(self.dim, str):
            raise DataError(f"dim is {self.dim!r}: give the name of one dim")

    def _model(self, n: int, d: int, n_passes: int | None) -> LinearModel:
        """Return an estimator for n anomalies of d places, not fitted."""
        if self.n_modes > min(n, d):
            raise DataError(
                f"n_modes is {self.n_modes} but there are {n:,} samples of {d:,} places with data: ask for at most "
                f"{min(n, d):,}"
            )
        common: dict[str, Any] = {"random_state": self.random_state, "memory_budget": self.memory_budget}
        if self.solver != STREAMING:
            return PCA(self.n_modes, solver=self.solver, **common)
        exact = default_method(self.n_modes, d, {"oversampling": self.oversampling}) == "covariance"
        passes = 1 if exact else self.n_passes if n_passes is None else n_passes
        size = min(n, batch_rows(d)) if self.batch_size is None else self.batch_size
        own: dict[str, Any] = {"batch_size": size, "oversampling": self.oversampling}
        return StreamingPCA(self.n_modes, n_passes=passes, **own, **common)

    def _seed(self) -> int:
        return self.model_._seed()

    def _scale(self, scaling: int) -> Array:
        return scale_of(self.explained_variance_, scaling)

    def _attributes(self, in_units: bool) -> dict[str, Any]:
        """Return the attributes of the field, with its units where the values are in these."""
        known = {} if self._given.labels is None else self._given.labels.attrs
        keeps = in_units and not self.standardize
        return {name: value for name, value in known.items() if name != "units" or keeps}

    def _projected(self, given: Field) -> Any:
        source, n = given.source, given.source.shape[0]
        times = self._calendar.groups(given.along, n), self._calendar.trend(given.along, n)
        if self.gaps == "interpolate" and (longest := longest_gap(source, n)):
            source = interpolated(source, given, longest)
        if self._expected is not None:
            source = FilledSource(source, self._anomalies, *times, self._expected)
        anomalies = AnomalySource(source, self._anomalies, *times, certain=True)
        anomalies.with_gaps = True  # of samples without values
        return projected(anomalies, self.model_.basis_)

    def _used_pcs(self) -> Array:
        self.pcs()
        pcs: Any = self._pcs
        used: Array = pcs[~np.isnan(pcs).any(axis=1)].astype(np.float64)
        return used


def batch_rows(n_places: int) -> int:
    """Return how many samples of so many places a batch of the solver "streaming" has by default."""
    return min(_BATCH_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES // (4 * n_places)))

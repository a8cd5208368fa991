r"""The fit of `MCA` and `CCA`: both fields as anomalies, and the solvers that find their coordinates.

::

    field X -> anomalies --\                                   /-> basis, weights and patterns of X
                             solver -> coordinates -> coupled
    field Y -> anomalies --/                                   \-> basis, weights and patterns of Y
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import dask.array as da
import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import gram_blocks, gram_of
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.passes import Passes
from dpca.models.coupled.coupling import Coupled, Coupling, FieldCoordinates, coupled
from dpca.models.eof.anomalies import Anomalies, AnomalySource
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.eof_fit import Fitting
from dpca.models.eof.fields import Field, FieldNames
from dpca.models.eof.on_grid import GridAnomalySource
from dpca.models.eof.projection import projected
from dpca.models.linear.dual_solver import dual_rows
from dpca.models.linear.pca import PCA
from dpca.models.linear.weighted import row_factors, weighted_mean, weighted_rows
from dpca.partition.whole import Whole
from dpca.representation.linear import LinearRepresentation
from dpca.rules.covariance.covariance import Covariance
from dpca.rules.dual.gram import float_gram, product_dtype
from dpca.rules.dual.weights import dual_weights
from dpca.storage.errors import DataError, PlanError
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run

Sources = tuple[AnomalySource, AnomalySource]

# Above this number of samples or attributes, the solver "streaming" takes less time than the exact ones.
_MOST_EXACT = 2**13


@dataclass(eq=False)
class FittedField:
    """What a model keeps of one field.

    Attributes
    ----------
    given : FieldNames
        A `Field` until the model is stored.
    calendar : Calendar
    anomalies : Anomalies
    basis : LinearRepresentation
        Orthonormal rows (m, d) and the mean (d,) of the anomalies.
    series : array (n, m) or None
        The coordinates of the samples of the fit in this basis.
    retained : float
        Share of the variance that the principal components before the analysis explain.
    interpolates : bool
        Whether gaps of samples are interpolated.
    weighted : bool
        Whether the samples of the fit have weights.
    """

    given: FieldNames
    calendar: Calendar
    anomalies: Anomalies
    basis: LinearRepresentation
    series: Array | None
    retained: float
    interpolates: bool
    weighted: bool


@dataclass
class Reducing(Fitting):
    """The preparation of one field, as for an `EOF`; then whatever is done with its anomalies."""

    fillings = "gaps='interpolate'"
    keeps_axes = False

    then: Callable[[AnomalySource], Any] = field(kw_only=True)
    _known: AnomalySource | None = field(default=None, init=False)

    def fitted(self) -> Any:
        """Return what is done with the anomalies. A second call keeps the grid points with data of the first one."""
        return super().fitted() if self._known is None else self.then(self._known)

    def _fitted(self, source: AnomalySource | GridAnomalySource, n_passes: int | None = None) -> Any:
        if source.shape[0] < self.given.source.shape[0]:
            raise DataError(
                f"{self.given.source.shape[0] - source.shape[0]} of {self.given.source.shape[0]:,} samples of "
                f"{source.name} have no values: remove them from both fields, or use gaps='interpolate'"
            )
        self._known = cast(AnomalySource, source)  # these fields do not keep their axes
        return self.then(self._known)


@dataclass(frozen=True, eq=False)
class CoupledProblem:
    """What is asked of a fit.

    Attributes
    ----------
    eofs : tuple of two EOF
        Unfitted, with the parameters of each field, and the integer number of principal components, if it is given.
    n_pca : tuple of two int, float or None
    k, n : int
    whiten : float or None
        For CCA, the sum of the weights of the samples: n if all are 1.
    decay : float or None
        With ``hilbert``, see `dpca.kernels.analytic`.
    hilbert : bool
    run : Run
    fractions : array (n,), optional
        The weights of the samples, if they are not whole numbers.
    """

    eofs: tuple[Any, Any]
    n_pca: tuple[Any, Any]
    k: int
    n: int
    whiten: float | None
    hilbert: bool
    decay: float | None
    run: Run
    fractions: Array | None = None


@dataclass(frozen=True, eq=False)
class FoundModes:
    """The result of a solver."""

    coupled: Coupled
    rows: tuple[Array, Array]
    """The bases (m, d) of both fields."""
    means: tuple[Array, Array]
    retained: tuple[float, float]
    sources: Sources
    with_series: bool
    turns: tuple[Array | None, Array | None] | None = None
    """Without series: the principal components (q, d) of each field, or None if all of its grid points are analyzed."""

    def fields(
        self, given: tuple[Field, Field], calendars: Sequence[Calendar], *, interpolates: bool, weighted: bool
    ) -> Iterator[FittedField]:
        """Yield what a model keeps of each field. The series of the fit are those of samples without weights."""
        for i, source in enumerate(self.sources):
            d, series = source.shape[1], None
            if self.with_series and self.coupled.series is not None and not weighted:
                series = self.coupled.series[i] @ self.coupled.bases[i]
            basis = LinearRepresentation(Whole((d,)), self.means[i], self.rows[i])
            kept = basis, series, self.retained[i]
            yield FittedField(given[i], calendars[i], source.anomalies, *kept, interpolates, weighted)

    @property
    def coupling(self) -> Coupling:
        """The modes."""
        return self.coupled.coupling


Solver = Callable[[CoupledProblem, Sources], FoundModes]


def solve(problem: CoupledProblem, solver: str, sources: Sources) -> FoundModes:
    """Return the modes by a solver, or by the first one that fits into memory.

    Raises
    ------
    PlanError
        If none does.
    """
    refusal: PlanError | None = None
    for name in _tried(problem, sources) if solver == "auto" else [solver]:
        try:
            return SOLVERS[name](problem, sources)
        except PlanError as error:
            refusal = error
    # Remedies of other estimators do not apply.
    why, whole = str(refusal).partition(": ")[0], all(isinstance(q, int) for q in problem.n_pca)
    remedy = f"{'fewer' if whole else 'an integer as'} n_pca_modes" + ("" if solver == "auto" else ", or solver='auto'")
    raise PlanError(
        f"the modes of {sources[0].name} and {sources[1].name} do not fit into memory ({why}): increase memory_budget, "
        f"or use {remedy}"
    )


def _tried(problem: CoupledProblem, sources: Sources) -> list[str]:
    n, d = problem.n, sum(source.shape[1] for source in sources)
    found = ["covariance", "dual"] if d <= n else ["dual", "covariance"]
    if not all(isinstance(q, int) for q in problem.n_pca):
        return found
    return ["streaming", *found] if min(n, d) > _MOST_EXACT else [*found, "streaming"]


def by_covariance(problem: CoupledProblem, sources: Sources) -> FoundModes:
    """Find the modes from the joint covariance of both fields, in one pass.

    Those of analytic signals follow from the covariance of each field, and the time series of its principal components.
    """
    if problem.hilbert:
        pairs = zip(sources, problem.n_pca, strict=True)
        return _by_components(problem, sources, [_exact_model(problem, *pair) for pair in pairs])
    pair = JoinedSource(*map(_bare, sources))
    d, total = pair.ends
    if (need := 24 * total**2) > usable_bytes():
        raise PlanError(f"the joint covariance of {total:,} grid points requires {need / 1e6:,.0f} MB")
    passes = Passes(pair, problem.run)
    mean = _without_mean(problem, passes)
    rule = Covariance(center=mean is None)
    found = passes.over(Whole(pair.shape[1:]), rule, stage="joint covariance")[0]
    mean = found["mean"] if mean is None else mean
    covariance, means = found["covariance"], (mean[:d], mean[d:])
    sides, turns = [], []
    with one_blas_thread():
        for own, q in zip((covariance[:d, :d], covariance[d:, d:]), problem.n_pca, strict=True):
            side, turn = _principal(own, q) if q is not None else (FieldCoordinates(own), None)
            sides.append(side)
            turns.append(turn)
        cross = covariance[:d, d:]
        cross = cross if turns[0] is None else turns[0] @ cross
        cross = cross if turns[1] is None else cross @ turns[1].T
        result = coupled(sides[0], sides[1], cross, problem.n, problem.k, whiten=problem.whiten)
        bases = zip(result.bases, turns, sources, strict=True)
        rows = [(basis.T if turn is None else basis.T @ turn).astype(s.dtype) for basis, turn, s in bases]
    return replace(_found(result, rows, means, sides, sources, with_series=False), turns=(turns[0], turns[1]))


def _principal(covariance: Array, q: float) -> tuple[FieldCoordinates, Array]:
    """Return the principal components as coordinates, and their rows (q, d)."""
    total, d = float(np.trace(covariance)), len(covariance)
    values, rows = linalg.leading_eigh(covariance.copy(), min(q, d) if isinstance(q, int) else d, precise=True)
    kept = _number_of(values, total, q)
    values, rows = values[:kept], rows[:kept]
    return FieldCoordinates(np.diag(values), retained=float(values.sum()) / max(total, 1e-300)), rows


def _number_of(values: Array, total: float, q: float | None) -> int:
    """Return the number of principal components of these variances: q of them, or the fewest with a share of q."""
    if q is None or isinstance(q, int):
        return len(values) if q is None else min(q, len(values))
    return min(int(np.searchsorted(np.cumsum(values), q * total)) + 1, len(values))


def by_gram(problem: CoupledProblem, sources: Sources) -> FoundModes:
    """Find the modes from the Gram matrices of both fields, then the patterns in one more pass."""
    sides, weights, passes = [], [], [Passes(_bare(source), problem.run) for source in sources]
    most = [min(q, problem.n) if isinstance(q, int) else problem.n for q in problem.n_pca]
    if (need := 64 * problem.n * sum(most)) > usable_bytes():
        raise PlanError(f"the principal components of {problem.n:,} samples require {need / 1e6:,.0f} MB")
    means = [_without_mean(problem, one) for one in passes]
    center = problem.fractions is None
    grids = [gram_blocks(one, center, k) for one, k in zip(passes, most, strict=True)]
    for one, grid, k, q in zip(passes, grids, most, problem.n_pca, strict=True):
        gram = float_gram(gram_of(one, grid, center), center)
        with one_blas_thread():
            found = dual_weights(gram, k, _precision(problem.n, one.source.dtype))
        values, total = found["explained_variance"], float(found["total_variance"])
        kept = _number_of(values, total, q)
        own = found["weights"][:kept]
        series = own.T * (values[:kept] * (problem.n - 1))
        share = float(values[:kept].sum()) / max(total, 1e-300)
        sides.append(FieldCoordinates(np.diag(values[:kept]), series, share))
        weights.append(own)
    with one_blas_thread():
        result = _from_series(problem, sides)
    rows = []
    # The first pass has shown that no further values are missing.
    sure = [_certain(source) for source in sources]
    for i, (source, basis, own) in enumerate(zip(sure, result.bases, weights, strict=True)):
        one = Passes(_bare(source), problem.run)
        one.source = _weighted(problem, one.source, means[i])
        dtype = np.dtype(np.result_type(one.source.dtype, np.float32))
        image, mean = dual_rows(basis.T @ own, one, dtype, center=center)
        rows.append(image)
        means[i] = mean if center else means[i]
    return _found(result, rows, means, sides, sources, with_series=True)


def by_streaming(problem: CoupledProblem, sources: Sources) -> FoundModes:
    """Find the modes from the leading principal components of both fields by incremental SVD."""
    for q in problem.n_pca:
        if not isinstance(q, int):
            raise DataError(f"n_pca_modes is {q!r}, but solver='streaming' requires an integer: give one")
    any_weights = problem.fractions is not None
    models = [
        eof._model(*source.shape, None, any_weights=any_weights)
        for eof, source in zip(problem.eofs, sources, strict=True)
    ]
    return _by_components(problem, sources, models)


def _exact_model(problem: CoupledProblem, source: AnomalySource, q: float | None) -> PCA:
    n, d = source.shape
    if (need := 40 * n * min(n, d, q if isinstance(q, int) else d)) > usable_bytes():
        raise PlanError(f"the time series of all principal components require {need / 1e6:,.0f} MB")
    wanted = min(n, d) if q is None else min(q, n, d) if isinstance(q, int) else q
    return PCA(wanted, solver="covariance", memory_budget=problem.eofs[0].memory_budget)


def _by_components(problem: CoupledProblem, sources: Sources, models: Sequence[LinearModel]) -> FoundModes:
    """Find the modes from the principal component time series of both fields, in one more pass."""
    sides, turns, means = [], [], []
    for source, model in zip(sources, models, strict=True):
        model.fit(source, sample_weight=problem.fractions, run=problem.run)
        series = projected(source, model.basis_, problem.run)
        series = np.asarray(series.compute() if isinstance(series, da.Array) else series, np.float64)
        series -= np.average(series, axis=0, weights=problem.fractions)
        if problem.fractions is not None:
            series *= row_factors(problem.fractions)[:, None]
        covariance = series.T @ series / (problem.n - 1)
        share = float(np.trace(covariance)) / max(float(model.total_variance_), 1e-300)
        sides.append(FieldCoordinates(covariance, series, share))
        turns.append(np.asarray(model.components_))
        means.append(model.mean_)
    with one_blas_thread():
        result = _from_series(problem, sides)
        rows = [basis.T.astype(turn.dtype) @ turn for basis, turn in zip(result.bases, turns, strict=True)]
    return _found(result, rows, means, sides, sources, with_series=True)


def _from_series(problem: CoupledProblem, sides: list[FieldCoordinates]) -> Coupled:
    x, y = [side.analytic(problem.decay) if problem.hilbert else side for side in sides]
    return coupled(x, y, None, problem.n, problem.k, whiten=problem.whiten)


SOLVERS: dict[str, Solver] = {"covariance": by_covariance, "dual": by_gram, "streaming": by_streaming}


def _found(result: Coupled, rows: Any, means: Any, sides: Any, sources: Sources, *, with_series: bool) -> FoundModes:
    retained = sides[0].retained, sides[1].retained
    return FoundModes(result, tuple(rows), tuple(means), retained, sources, with_series)


def _without_mean(problem: CoupledProblem, passes: Passes) -> Array | None:
    """Return the weighted mean (d,), and pass over rows without it, see `weighted_rows`; None without weights."""
    source = passes.source
    if problem.fractions is None:
        return None
    source = copy(source)
    source.weights = problem.fractions
    mean = named_errors(weighted_mean, source.name)(source, passes)
    passes.source = weighted_rows(source, mean)
    return mean.ravel()


def _weighted(problem: CoupledProblem, source: Source, mean: Array | None) -> Source:
    """Return the rows of samples with weights, see `weighted_rows`; samples without weights as they are."""
    if problem.fractions is None or mean is None:
        return source
    source = copy(source)
    source.weights = problem.fractions
    return weighted_rows(source, mean.reshape(source.shape[1:]))


def _precision(n: int, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype whose rounding errors the products of samples have. Those of small integers are exact."""
    return np.dtype(np.float64) if is_exact(dtype) else product_dtype(n, dtype)


def _certain(source: AnomalySource) -> AnomalySource:
    found = copy(source)
    found.certain = True
    return found


def _bare(source: AnomalySource) -> Source:
    """Return the samples themselves if they are the anomalies. Products of small integers are then exact."""
    inner, own = source.source, source.anomalies
    plain = own.gain is None and own.level is None and len(own.places) == math.prod(own.sample_shape)
    same = is_exact(inner.dtype) or (source.certain and inner.dtype == source.dtype)
    return inner if plain and same else source

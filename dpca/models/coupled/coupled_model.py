"""Base of `MCA` and `CCA`: fit, rotation and significance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpca.kernels.algebra.types import Array
from dpca.models.base.parameters import also_called, check_parameters
from dpca.models.base.passes import run_of_fit
from dpca.models.coupled.coupled_fit import CoupledProblem, FittedField, FoundModes, Reducing, solve
from dpca.models.coupled.coupled_rotation import RotatedModes, rotated_modes
from dpca.models.coupled.coupled_significance import permutation_test
from dpca.models.coupled.coupled_store import StoredCoupled
from dpca.models.coupled.coupling import Coupling, FieldCoordinates
from dpca.models.coupled.results import CoupledResults, oriented
from dpca.models.eof import significance
from dpca.models.eof.anomalies import AnomalySource
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.eof import EOF
from dpca.models.eof.eof_fit import counted
from dpca.models.eof.fields import Field
from dpca.models.weights.attribute_weights import field_weights
from dpca.parameters.coupled import EXPONENTIAL
from dpca.parameters.eof import STREAMING
from dpca.representation.linear import LinearRepresentation
from dpca.storage.errors import DataError, PlanError
from dpca.storage.given_numbers import whole_number
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run


class CoupledModel(CoupledResults, StoredCoupled):
    """Base of the estimators of modes of two fields."""

    #: Whether both fields are whitened.
    whitens: ClassVar[bool]

    n_modes: int
    n_pca_modes: Any
    dim: str
    gaps: str
    weights: Any
    hilbert: bool
    padding: str | None
    decay: float
    solver: str
    random_state: Any
    memory_budget: int | None

    @also_called("sample_dim", "dim")
    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        sample_weight: Any = None,
        dim: str | None = None,
        key: str | None = None,
        run: Run = Run(),
    ) -> Self:
        """Find the modes of two fields with the same samples.

        Parameters
        ----------
        X, Y : DataArray, Dataset, array (n_samples, *sample_shape), Stack, path or Source
            As in `EOF.fit`. Both have the same number of samples, in the same order: sample i of one belongs to
            sample i of the other, whatever their coordinates, such as times with a lag.
        sample_weight : array_like (n_samples,), optional
            How often each pair of samples counts, as in `EOF.fit`: 2 is a pair twice, and 0 leaves it out. With weights
            that are not whole numbers, covariances have the divisor sum(weights) - 1, the fit reads the data once more
            for the mean, and the solver "streaming" takes the principal components of `PCA`. With any weights,
            `scores` reads the samples.
        dim, key : str, optional
            As in `EOF.fit`.
        run : Run
            As in `EOF.fit`.

        Warns
        -----
        GapWarning
            If grid points that miss some values are excluded.

        Raises
        ------
        DataError
            If both fields have different numbers of samples, a sample has no values, or as in `EOF.fit`; or for
            ``hilbert=True`` with ``sample_weight``, because an analytic signal requires each sample once.
        PlanError
            If the fit exceeds the memory budget.
        """
        check_parameters(self)
        if dim is not None and dim != self.dim:
            name = type(self).__name__
            raise DataError(f"dim is {dim!r} in fit() but {self.dim!r} in the estimator: use {name}(..., dim={dim!r})")
        given = Field.of(X, self.dim, key), Field.of(Y, self.dim, key)
        n, m = (one.source.shape[0] for one in given)
        if n != m:
            raise DataError(f"X has {n:,} samples and Y {m:,}: give two fields with the same samples")
        if n < 2:
            raise DataError(f"there is {n} sample along {self.dim!r}: a fit requires at least 2 samples")
        if self.hilbert and sample_weight is not None:
            raise DataError(
                "hilbert=True does not support sample_weight, because an analytic signal requires each sample once: "
                "fit without sample_weight, or with hilbert=False"
            )
        interpolates, weighted = self.gaps == "interpolate", sample_weight is not None
        read = [counted(one, sample_weight, fill=interpolates) for one in given]
        used, fractions = (read[0][0], read[1][0]), read[0][1]
        n_used = used[0].source.shape[0]
        if n_used < 2:
            raise DataError(f"sample_weight leaves {n_used} sample: a fit requires at least 2 samples")
        eofs, run = (self._field_options(0), self._field_options(1)), run_of_fit(run, self.memory_budget)
        calendars = [
            Calendar.of(one.along, n_used, one.dim, eofs[0].climatology, bool(eofs[0].detrend)) for one in used
        ]
        problem = CoupledProblem(
            eofs=eofs,
            n_pca=(_of_field(self.n_pca_modes, 0), _of_field(self.n_pca_modes, 1)),
            k=self.n_modes,
            n=n_used,
            whiten=(n_used if fractions is None else float(fractions.sum())) if self.whitens else None,
            hilbert=bool(self.hilbert),
            decay=self.decay if self.padding == EXPONENTIAL else None,
            run=run,
            fractions=fractions,
        )

        def reducing(i: int, then: Any) -> Reducing:
            weights = field_weights(eofs[i].weights, given[i].labels, tuple(given[i].source.shape[1:]))
            return Reducing(eofs[i], used[i], calendars[i], weights, run, fractions=fractions, then=then)

        # The solver runs where both fields are anomalies. If grid points with data differ from those of the first
        # sample, it runs again after a survey.
        second = reducing(1, None)

        def with_first(x: AnomalySource) -> FoundModes:
            second.then = lambda y: solve(problem, self.solver, (x, y))
            reached: FoundModes = second.fitted()
            return reached

        found: FoundModes = reducing(0, with_first).fitted()
        fields = tuple(found.fields(given, calendars, interpolates=interpolates, weighted=weighted))
        self._set_fitted(found.coupling, (fields[0], fields[1]), n_used, n)
        self._coupling = oriented(self)
        self._white, self._turns = None if weighted else found.coupled.white, found.turns
        return self

    def rotate(
        self, method: str = "varimax", n_modes: int | None = None, *, kaiser: bool = True, power: int = 4
    ) -> RotatedModes:
        """Return the modes rotated to simple structure; see `dpca.models.coupled.coupled_rotation.rotated_modes`."""
        self._fitted()
        k = self.n_modes if n_modes is None else whole_number(n_modes, "n_modes", 2)
        return rotated_modes(self, method, k, kaiser, power)

    def north_test(self, *, n_eff: bool = True) -> Any:
        """Return standard errors and separation of the singular values; see `dpca.models.eof.significance.north_test`.

        With ``n_eff``, the effective number of samples follows from the autocorrelations of the scores of both fields
        (Bretherton, Widmann, Dymnikov, Wallace & Blade 1999, equation 30).
        """
        fields, values = self._fitted(), self._coupling.singular_values
        if n_eff:
            significance.require_unweighted(fields[0].weighted)
        both: Any = (
            [self._series(one) @ side.weights for one, side in zip(fields, self._sides, strict=True)] if n_eff else []
        )
        pcs = [scores.real for scores in both]
        return fields[0].given.table(significance.north_test(values, self.n_samples_seen_, *pcs))

    def permutation_test(self, *, n_trials: int = 500, level: float = 0.95, block_length: int = 1) -> Any:
        """Return which modes are stronger than those of fields whose samples do not belong together.

        The samples of the second field are permuted in blocks; see
        `dpca.models.coupled.coupled_significance.permutation_test`. It requires the process of the fit. After the
        solver "covariance" it reads the samples once more, and holds the principal component time series of both.
        """
        first = self._fitted()[0]
        significance.require_unweighted(first.weighted)
        values, seed = self._coupling.singular_values, int(check_random_state(self.random_state).randint(2**31))
        x, y = self._white_series()
        return first.given.table(permutation_test(x, y, values, n_trials, level, block_length, seed))

    # -- internals

    _white: tuple[Array, Array] | None = None
    _turns: tuple[Array | None, Array | None] | None = None

    def _white_series(self) -> tuple[Array, Array]:
        """Return the time series (n, r) of all principal components of both fields, whitened for CCA."""
        if self._white is None:
            if self._turns is None:
                raise DataError(
                    "a stored model has no time series of all principal components for a permutation test: call "
                    "permutation_test() before save(), or fit in this process"
                )
            n, found, fields = self.n_samples_seen_, [], self._fitted()
            rank = sum(one.basis.mean.size if t is None else len(t) for one, t in zip(fields, self._turns, strict=True))
            if (need := 24 * n * rank) > usable_bytes():
                raise PlanError(
                    f"the time series of {rank:,} principal components of {n:,} samples require {need / 1e6:,.0f} MB: "
                    "fit with fewer n_pca_modes"
                )
            for one, turn in zip(fields, self._turns, strict=True):
                rows = np.eye(one.basis.mean.size) if turn is None else turn
                basis = LinearRepresentation(one.basis.partition, one.basis.mean, rows)
                series = self._series(replace(one, basis=basis, series=None))
                if self.whitens:
                    series = series @ FieldCoordinates(series.T @ series / (n - 1)).whitening(n)[0]
                found.append(series)
            self._white = found[0], found[1]
        return self._white

    def _set_fitted(
        self, coupling: Coupling, fields: tuple[FittedField, FittedField], n_used: int, n_given: int
    ) -> None:
        self._coupling, self._fields, self.n_samples_seen_, self._n_given = coupling, fields, n_used, n_given
        self.sample_shape_ = fields[0].anomalies.sample_shape
        self.sample_shapes_ = fields[0].anomalies.sample_shape, fields[1].anomalies.sample_shape
        self.pca_variance_ratio_ = fields[0].retained, fields[1].retained
        self.total_squared_covariance_ = coupling.total

    def _fitted(self) -> tuple[FittedField, FittedField]:
        check_is_fitted(self, "_fields")
        return super()._fitted()

    def _field_options(self, i: int) -> EOF:
        """Return an unfitted `EOF` with the parameters of a field."""
        common: Any = {name: getattr(self, name) for name in _OF_FIELDS}
        q = _of_field(self.n_pca_modes, i)
        pair = {name: _of_field(getattr(self, name), i) for name in ("weights", "standardize")}
        eof = EOF(q if isinstance(q, int) else self.n_modes, solver=STREAMING, **common, **pair)
        check_parameters(eof)
        return eof


_OF_FIELDS = (
    *("dim", "gaps", "detrend", "climatology", "n_passes", "batch_size", "oversampling", "random_state"),
    "memory_budget",
)


def _of_field(value: Any, i: int) -> Any:
    """Return the value of a field of a parameter with one for both, or a tuple of two."""
    found = value[i] if isinstance(value, tuple) else value
    return int(found) if isinstance(found, np.integer) else found

"""PCA: principal components of data of any size, exact or to a tolerance."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.convergence import RESULT, check_result, check_scale
from dpca.models.base.docs import documented
from dpca.models.base.linear_model import LeastComponents, LinearModel, least_scores
from dpca.models.base.parameters import check_parameters, checked_rank, explained_share, require_seed
from dpca.models.base.passes import Passes
from dpca.models.base.samples import first_magnitude, varied_source
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.gaps.gap_fit import (
    GAP_SOLVER,
    GapModels,
    check_gap_results,
    fit_complete,
    fit_gaps,
    rank_with_gaps,
    require_counts,
)
from dpca.models.gaps.with_gaps import WithGaps
from dpca.models.linear.pca_solvers import (
    DEFAULT_ITERATIONS,
    DEFAULT_TOLERANCE,
    SOLVERS,
    choose_solver,
    instead_of_basis,
    plan_first_pass,
)
from dpca.models.linear.solver_problem import SolverProblem
from dpca.models.linear.weighted import weighted_mean, weighted_rows
from dpca.models.linear.with_variables import WithVariables
from dpca.parameters.linear import PCAParameters
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation
from dpca.rules.gaps.expectation import GapEM
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.run import Run

# Solvers that find all components.
_COMPLETE = ("covariance", "dual")
# Solvers that work with further directions.
_OVERSAMPLED = ("randomized", "orthogonal-iteration")
_DEFAULT_OVERSAMPLING = 10
# Variances below this would make squared distances overflow.
_LEAST_VARIANCE = 1e-200


@documented()
class PCA(PCAParameters, WithVariables, WithGaps, LinearModel):
    """Principal component analysis of samples that need not fit in memory, exact or to a tolerance.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {whole_samples}
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        Variances (divisor n - 1) along ``components_``.
    least_components_, least_variance_ : arrays (n_least, n_features) and (n_least,), float64
        In ascending order; only with ``n_least``. Exact up to the rounding error of the largest variance.
    components_, mean_
        Dask arrays if the solver is "dual" and the components have more than 256 MiB, or do not fit into memory. They
        read a Zarr store in a temporary folder, in the folder of the checkpoints, or at the path of a stored model.
    solver_, solver_reason_ : str
        The solver, and the reason for its choice.
    captured_bound_ : float
        Certificate: the captured variance is at least this share of the optimum. This is proven and includes rounding,
        see `dpca.rules.certificates.certificate`. For the exact solvers, the bound differs from 1 by rounding only: by
        1e-9 or less
        for 8-bit integers and float64, else by up to some percent if eigenvalues are close. For the other solvers, it
        is far below the true share if much variance lies outside their basis.
    residual_norms_ : array (n_components,), float64
        Measured ||C v - lambda v|| of each component; only by the iterative solvers.
    n_passes_ : int
        Number of passes over the data.
    held_out_rmse_ : float
        Root mean squared error of held-out values. Exists only after a fit to samples with missing values.

    Notes
    -----
    {where}

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import PCA
    >>> images = np.random.default_rng(0).integers(0, 256, (300, 20, 30), dtype=np.uint8)
    >>> model = PCA(5).fit(images)
    >>> model.transform(images).shape
    (300, 5)
    >>> model.solver_
    'dual'
    """

    store_kind: ClassVar[str] = "pca"
    any_weights: ClassVar[bool] = True
    array_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        **LinearModel.array_axes,
        "residual_norms": ("component",),
        "least_components": ("least_component", "feature"),
        "least_variance": ("least_component",),
    }
    kept_facts: ClassVar[dict[str, type]] = {
        "n_passes": int,
        "captured_bound": float,
        "solver": str,
        "solver_reason": str,
    }

    # -- learning

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        source = varied_source(self, X)
        if source.with_gaps:
            require_counts(source)
            if self._fit_with_gaps(source, run, callbacks):
                return
            source.with_gaps = False
        self._fit_complete(source, run, callbacks)

    def _fit_complete(self, source: Source, run: Run, callbacks: FitCallbacks | None = None) -> None:
        """Fit samples without missing values."""
        passes = Passes(source if source.weights is None else weighted_rows(source), run, callbacks=callbacks)
        problem, solver, reason = self._chosen(passes.source, passes)
        if solver not in _COMPLETE and run.checkpoints is not None:
            require_seed(self.random_state)
        known: dict[str, Array] = {}
        if source.weights is not None:
            if problem.center:
                mean = named_errors(weighted_mean, source.name)(source, passes)
                passes.source, known = weighted_rows(source, mean), {"mean": mean.ravel()}
            problem = replace(problem, center=False)

        def set_fitted(model: Any, found: dict[str, Array], n: int) -> None:
            found = model._truncated(found) | known
            check_result(found, solver, (*RESULT, "residual_norms", "least_components", "least_variance"))
            dtype = None if solver == "covariance" else problem.dtype
            check_scale([found], solver, dtype, partial(first_magnitude, source, n))
            model.solver_, model.solver_reason_, model.n_passes_ = solver, reason, passes.count
            if isinstance(found["components"], np.ndarray):
                found["components"] = found["components"].astype(problem.dtype, copy=False)
            model._set_fitted(found, tuple(source.shape[1:]), n)

        passes.set_fitted = set_fitted
        found = named_errors(SOLVERS[solver], source.name)(problem, passes)
        set_fitted(self, found, source.shape[0])
        self.fit_report_ = passes.report
        if "error" in found and found["error"] > problem.tol:
            warnings.warn(self._advice(problem, float(found["error"])), ConvergenceWarning, stacklevel=4)

    def _fit_with_gaps(self, source: Source, run: Run, callbacks: FitCallbacks | None) -> bool:
        """Fit samples that may have missing values; return False if they have none and are not fitted."""
        k, passes = self._rank_with_gaps(source), Passes(source, run, callbacks=callbacks)
        # A callback sees models of one fit only.
        complete = partial(self._fit_complete, run=run.below("complete"))
        if callbacks is None and fit_complete(complete, source, self.missing_value):
            return True
        if passes.run.checkpoints is not None:
            require_seed(self.random_state)

        def set_fitted(model: Any, found: GapModels, n: int) -> None:
            (result,) = found.results(k)
            check_gap_results([result], k, source.name)
            result["components"] = result["components"].astype(working_dtype(source.dtype))
            model.solver_, model.solver_reason_ = GAP_SOLVER, "values are missing"
            model.n_passes_, model.held_out_rmse_ = passes.count, found.held_out_rmse
            model._set_fitted(result, tuple(source.shape[1:]), n)

        passes.set_fitted = set_fitted
        found = fit_gaps(passes, Whole(tuple(source.shape[1:])), k, self.missing_value, self._seed(), passes.show)
        if found is None:
            return False
        set_fitted(self, found, source.shape[0])
        self.fit_report_ = passes.report
        return True

    def _rank_with_gaps(self, source: Source) -> int:
        d = math.prod(source.shape[1:])
        return rank_with_gaps(self, {"center": True, "n_least": 0, "whiten": False}, d, source.shape[0])

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        source = self._planned(source)
        passes = Passes(source, run.limited_to(self.memory_budget))
        if self.gaps == "iterate":
            passes.plan(Whole(tuple(source.shape[1:])), GapEM(k := self._rank_with_gaps(source)))
            return self._basis_to_be(source, k)
        problem, solver, _ = self._chosen(source, passes)
        plan_first_pass(solver, problem, passes)
        basis, known = self._basis_to_be(source, problem.k)
        return self._planned_basis(basis), known

    def _chosen(self, source: Source, passes: Passes) -> tuple[SolverProblem, str, str]:
        """Return the checked problem, the solver, and the reason for its choice."""
        check_parameters(self)
        n, d, n_least = source.shape[0], math.prod(source.shape[1:]), int(self.n_least)
        complete = self.n_components is None or explained_share(self.n_components) is not None
        k = min(n, d) if complete else checked_rank(self.n_components, d, n)
        if n_least > d:
            raise DataError(f"n_least is {n_least}, but a sample has only {d} attributes: use at most {d}")
        solver, reason = self.solver, f"solver={self.solver!r} was requested"
        if solver == "auto":
            solver, reason = choose_solver(n, d, k, passes.budget, dtype=str(source.dtype), n_least=n_least)
        elif solver not in SOLVERS:
            raise DataError(f"solver is {solver!r}: use one of auto, {', '.join(SOLVERS)}")
        elif self.oversampling is not None and solver not in _OVERSAMPLED:
            raise DataError(f"the solver {solver} does not support oversampling: omit it")
        elif self.n_iter is not None and solver not in DEFAULT_ITERATIONS:
            raise DataError(f"the solver {solver} does not iterate and does not support n_iter: omit it")
        elif self.tol is not None and solver not in DEFAULT_TOLERANCE:
            raise DataError(f"the solver {solver} is exact and does not support tol: omit it")
        if n_least and solver != "covariance":
            raise DataError(f"n_least is {n_least}, but {solver} finds no least components: use solver='covariance'")
        if complete and solver not in _COMPLETE:
            raise DataError(
                f"n_components={self.n_components} requires all {k:,} components, but {solver} ({reason}) cannot find "
                f"them: use an integer, or solver='covariance' or 'dual'"
            )
        n_iter = DEFAULT_ITERATIONS.get(solver, 1) if self.n_iter is None else self.n_iter
        extra = _DEFAULT_OVERSAMPLING if self.oversampling is None else self.oversampling
        tol = DEFAULT_TOLERANCE.get(solver, math.inf) if self.tol is None else self.tol
        problem = SolverProblem(
            n,
            d,
            k,
            dtype=working_dtype(source.dtype),
            center=bool(self.center),
            oversampling=int(extra),
            n_iter=whole_number(n_iter, "n_iter", 0 if solver == "randomized" else 1),
            tol=float(tol),
            seed=self._seed(),
            n_least=n_least,
            share=explained_share(self.n_components),
        )
        if self.solver == "auto" and solver == "randomized" and (other := instead_of_basis(problem, passes)):
            solver, reason = "dual", other
        return problem, solver, reason

    def _advice(self, problem: SolverProblem, error: float) -> str:
        more = f"increase n_iter (now {problem.n_iter})"
        if self.solver_ in _OVERSAMPLED:
            more += f" or oversampling (now {problem.oversampling})"
        else:
            more += ", use solver='orthogonal-iteration', which iterates on all components together"
        return (
            f"{self.solver_} has not converged: the captured variance has a relative error of up to {error:.1e}, above "
            f"tol={problem.tol:g}: {more}, or use a larger tol"
        )

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        super()._set_fitted(found, sample_shape, n)
        names = ("residual_norms", "least_components", "least_variance")
        self._set_optional({f"{name}_": found.get(name) for name in names})

    # -- using

    @property
    def basis_(self) -> LinearRepresentation:
        """The mean and the components, as tasks receive them."""
        return self._with_weights(self._with_gaps(super().basis_))

    def score_samples(self, X: Any, kind: str = "residual") -> Any:
        """Return minus a squared distance for each sample: outliers have low values.

        Parameters
        ----------
        X : as in `transform`
        kind : str
            "residual": minus the squared distance of a sample from its reconstruction. "least-components":
            -sum_j y_j^2 / lambda_j over the least components (Jolliffe 2002, section 10.1), the Mahalanobis distance in
            the directions of smallest variance; requires ``n_least``. Variances are at least the rounding error of the
            components' dtype, relative to the largest variance.

        Returns
        -------
        array (n_samples,), float64; a Dask array for Dask arrays, Zarr arrays, stacks and paths. Costs 4 n d k or
        2 n d n_least operations.
        """
        self._require_values("score_samples")
        if kind == "residual":
            return super().score_samples(X)
        if kind != "least-components":
            raise DataError(f"kind is {kind!r}: use residual or least-components")
        check_is_fitted(self)
        if not hasattr(self, "least_components_"):
            raise DataError("this model has no least components: fit it with n_least of at least 1")
        floor = float(np.finfo(self.components_.dtype).eps) * float(self.explained_variance_[0])
        variances = np.maximum(self.least_variance_, max(floor, _LEAST_VARIANCE))
        least = LeastComponents(self.basis_.mean, self.least_components_, variances)
        return self._each_sample(X, least_scores, least, (), lambda dtype: np.float64)

    # -- for jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Raise `DataError` if the parameters alone show that a fit to this many samples fails."""
        # Ingest has a better message for a source without samples.
        if self.n_components is not None and explained_share(self.n_components) is None:
            checked_rank(self.n_components, sys.maxsize, n_samples or None)

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit."""
        if (share := explained_share(self.n_components)) is not None:
            return f"the components that explain {100 * share:g} % of the variance"
        return f"{'all' if self.n_components is None else self.n_components} components exactly or to a tolerance"

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        return super().report_numbers() | {"method": self.solver_, "passes": self.n_passes_}

    # -- on disk

    def _to_store(self) -> StoreContents:
        contents = self._with_stored_weights(super()._to_store())
        n_least = len(getattr(self, "least_components_", ()))
        return replace(contents, facts={**contents.facts, "kept": list(contents.arrays), "n_least": n_least})

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        return super()._from_store(stored)._restore_weights(stored)

    @classmethod
    def _stored_lengths(cls, stored: StoredModel) -> dict[str, int]:
        return super()._stored_lengths(stored) | {"least_component": int(stored.facts.get("n_least", 0))}

"""PCA: principal components as exact as asked, in as many passes as that takes, of data of any size."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpca.engine.boundary import guarded
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.source import Source
from dpca.kernels.dtypes import working_dtype
from dpca.models.convergence import RESULT, check_result
from dpca.models.linear_model import LinearModel
from dpca.models.outliers import LeastComponents, least_scores
from dpca.models.parameters import check_parameters
from dpca.models.passes import Passes
from dpca.models.pca_solvers import DEFAULT_ITERATIONS, DEFAULT_TOLERANCE, SOLVERS, Problem
from dpca.models.solver_choice import choose_solver
from dpca.representation.lazy import default_client
from storage.errors import DataError
from storage.progress import Progress, no_progress

Array = NDArray[Any]

# Solvers that find every component there is.
_COMPLETE = ("covariance", "dual")
# Solvers that work with further directions.
_OVERSAMPLED = ("randomized", "orthogonal-iteration")
_DEFAULT_OVERSAMPLING = 10
# Variances below this would make squared distances overflow.
_LEAST_VARIANCE = 1e-200


class PCA(LinearModel):
    """Principal component analysis of samples that need not fit in memory, exact or as exact as asked.

    Parameters
    ----------
    n_components : int or None
        Components to find; None keeps all, min(n_samples, n_features), by the solvers "covariance" and "dual".
    solver : str
        - "covariance": its eigendecomposition (T 2.1; L 5.1). One pass, n d^2 operations, 8 d^2 bytes. Exact.
        - "dual": eigendecomposition of the Gram matrix of the samples (T 2.1; L 6.1). n^2 d operations, 8 n^2 bytes;
          reads the data once for each block of attributes that fits memory with all samples, and once more. Exact.
        - "randomized": range finder with ``n_iter`` power iterations, then Rayleigh-Ritz (Halko, Martinsson & Tropp
          2011). ``n_iter`` + 2 passes of 4 n d q operations, q = n_components + oversampling, 8 d q bytes.
        - "orthogonal-iteration": from a random basis (T 2.2.1; L 5.3) until ``tol`` is met, in at most ``n_iter``
          passes of the same cost.
        - "power": power iteration with deflation (T 2.2.1; L 5.2) until ``tol`` is met, in at most ``n_iter`` passes
          for each component, and one more.
        - "vr-pca": variance-reduced stochastic gradients (T algorithm 2.1; in blocks, Shamir 2016) until ``tol`` is
          met, in at most ``n_iter`` epochs of two passes. Takes the samples in the order of the store, in mini-batches.
        - "auto": by shape and memory, see `dpca.models.solver_choice.choose_solver`.
    n_least : int
        Least components to find beside: those of the smallest variances; only by "covariance".
    center : bool
        Subtract the mean.
    n_iter : int, optional
        See ``solver``; default 4, 100, 100 and 50 in the order above.
    oversampling : int, optional
        Further directions that "randomized" and "orthogonal-iteration" work with; default 10.
    tol : float, optional
        Largest error of the captured variance, as a share of it, that needs no warning; default 1e-4, and 1e-2 for
        "randomized", whose passes are fixed. The error is measured in the last pass: by so much at most does the
        captured variance differ from the sum of as many eigenvalues (the singular values of the residuals; Kahan
        1967). On 10,000 images of MNIST, 50 components, what was lost to the best ones was a sixth to a hundredth of
        it.
    random_state : int, RandomState or None
        Seed of the random start of the iterations.
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance; the entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers. Beyond the rank of the data they are arbitrary.
    mean_ : array (n_features,), float64
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        Variances (divisor n - 1) along ``components_``.
    least_components_, least_variance_ : arrays (n_least, n_features) and (n_least,), float64
        Ascending; only with ``n_least``. Known to the rounding error of the largest variance.
    solver_, solver_reason_ : str
        What was run, and why.
    total_variance_ : float
        Certificate: the sum of all variances of the samples, exact.
    captured_bound_ : float
        Certificate: the captured variance is at least this share of what the best components would capture; 1 for the
        exact solvers. Of the others it knows only that all variance outside their basis might lie in one direction: it
        is far below the truth where that is much, and 1 - ``tol`` where it is less than one component's.
    residual_norms_ : array (n_components,), float64
        ||C v - lambda v|| of each component, measured; only by the solvers that iterate.
    n_components_, n_features_in_, n_samples_seen_, n_passes_ : int
        The last is the number of passes over the data that were made.
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the first pass.

    Notes
    -----
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process.

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

    def __init__(
        self,
        n_components: int | None,
        *,
        solver: str = "auto",
        n_least: int = 0,
        center: bool = True,
        n_iter: int | None = None,
        oversampling: int | None = None,
        tol: float | None = None,
        random_state: Any = None,
        memory_budget: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.n_least = n_least
        self.center = center
        self.n_iter = n_iter
        self.oversampling = oversampling
        self.tol = tol
        self.random_state = random_state
        self.memory_budget = memory_budget

    # -- learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), numpy, Dask or Zarr; storage.Stack; or path of a stack store or Zarr array
        y : ignored
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from; needs an integer ``random_state``.
        progress : Progress, optional
            Told the bytes read in each pass.

        Warns
        -----
        ConvergenceWarning
            When the error is larger than ``tol``; it says what to change.

        Raises
        ------
        DataError
            For values that are not finite, or parameters that do not fit the data.
        PlanError
            When the state and a batch do not fit the memory budget.
        """
        if checkpoints is not None and not isinstance(self.random_state, int | np.integer):
            raise DataError(
                f"random_state is {self.random_state!r} but a fit with checkpoints must begin where it began before: "
                f"give an integer"
            )
        check_parameters(self)
        source = self._source(X)
        passes = Passes(
            source,
            client=client or default_client(),
            memory_budget=self.memory_budget,
            checkpoints=checkpoints,
            progress=progress,
        )
        n, d = source.shape[0], self.n_features_in_
        k, n_least = self._wanted(n, d)
        solver, reason = self._choice(n, d, k, n_least, passes.budget, source.dtype)
        problem = self._problem(solver, source, k, n_least)
        found = guarded(SOLVERS[solver], source.name)(problem, passes)
        check_result(found, solver, (*RESULT, "residual_norms", "least_components", "least_variance"))
        self.solver_, self.solver_reason_ = solver, reason
        self.n_passes_, self.fit_report_ = passes.count, passes.report
        found["components"] = found["components"].astype(problem.dtype, copy=False)
        self.restore(found, tuple(source.shape[1:]), n)
        if "error" in found and found["error"] > problem.tol:
            warnings.warn(self._advice(problem, float(found["error"])), ConvergenceWarning, stacklevel=2)
        return self

    def _wanted(self, n: int, d: int) -> tuple[int, int]:
        """Numbers of components and of least components, checked."""
        k, most = self.n_components, min(n, d)
        if k is None:
            k = most
        elif isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise DataError(f"n_components is {k!r}: give a positive integer, or None for all")
        if k > most:
            limit = f"a sample has only {d} attributes" if d <= n else f"there are only {n} samples"
            raise DataError(f"n_components is {k} but {limit}: ask for at most that many")
        least = _whole(self.n_least, "n_least", 0)
        if least > d:
            raise DataError(f"n_least is {least} but a sample has only {d} attributes: ask for at most that many")
        return int(k), least

    def _choice(self, n: int, d: int, k: int, n_least: int, budget: int, dtype: Any) -> tuple[str, str]:
        """Solver, and why."""
        if self.solver != "auto" and self.solver not in SOLVERS:
            raise DataError(f"solver is {self.solver!r}: choose one of auto, {', '.join(SOLVERS)}")
        solver, reason = self.solver, f"solver={self.solver!r} was asked for"
        if solver == "auto":
            solver, reason = choose_solver(n, d, k, budget, dtype=str(dtype), n_least=n_least)
        if n_least and solver != "covariance":
            raise DataError(f"n_least is {n_least} but {solver} finds no least components: use solver='covariance'")
        if self.n_components is None and solver not in _COMPLETE:
            raise DataError(
                f"n_components=None keeps all {k:,} components, which {solver} ({reason}) cannot: give a number, or "
                f"use solver='covariance' or 'dual'"
            )
        return solver, reason

    def _problem(self, solver: str, source: Source, k: int, n_least: int) -> Problem:
        """Check what the solver is told."""
        if self.solver != "auto" and self.oversampling is not None and solver not in _OVERSAMPLED:
            raise DataError(f"oversampling has no meaning for {solver}: leave it out")
        if self.solver != "auto" and self.n_iter is not None and solver not in DEFAULT_ITERATIONS:
            raise DataError(f"n_iter has no meaning for {solver}, which does not iterate: leave it out")
        n_iter = DEFAULT_ITERATIONS.get(solver, 1) if self.n_iter is None else self.n_iter
        extra = _DEFAULT_OVERSAMPLING if self.oversampling is None else self.oversampling
        tol = DEFAULT_TOLERANCE.get(solver, math.inf) if self.tol is None else self.tol
        if isinstance(tol, bool) or not isinstance(tol, int | float | np.integer | np.floating) or not tol > 0:
            raise DataError(f"tol is {tol!r}: give a positive number")
        return Problem(
            n=source.shape[0],
            d=self.n_features_in_,
            k=k,
            dtype=working_dtype(source.dtype),
            center=bool(self.center),
            oversampling=_whole(extra, "oversampling", 0),
            n_iter=_whole(n_iter, "n_iter", 0 if solver == "randomized" else 1),
            tol=float(tol),
            seed=int(check_random_state(self.random_state).randint(2**31)),
            n_least=n_least,
        )

    def _advice(self, problem: Problem, error: float) -> str:
        more = f"raise n_iter, now {problem.n_iter}"
        if self.solver_ in _OVERSAMPLED:
            more += f", or oversampling, now {problem.oversampling}"
        else:
            more += ", or use solver='orthogonal-iteration', which iterates on all components together"
        return (
            f"{self.solver_} has not converged: the captured variance may be off by {error:.1e} of itself, more than "
            f"tol={problem.tol:g}: {more}, or accept it by a larger tol"
        )

    def restore(self, found: dict[str, Array], sample_shape: tuple[int, ...], n: int) -> None:
        """Set the learned attributes from what a solver found or a store holds."""
        self._learned(found, sample_shape, n)
        self.captured_bound_ = float(found["captured_bound"])
        for name in ("residual_norms", "least_components", "least_variance"):
            if name in found:
                setattr(self, f"{name}_", found[name])
            elif hasattr(self, f"{name}_"):
                delattr(self, f"{name}_")  # of an earlier fit

    # -- using

    def score_samples(self, X: Any, kind: str = "residual") -> Any:
        """Return how normal each sample is, minus a squared distance: the lower, the more an outlier.

        Parameters
        ----------
        X : as in `transform`
        kind : str
            "residual": -|x - x^|^2, what the components leave of a sample. "least-components": -sum_j y_j^2 / lambda_j
            over the least components, the Mahalanobis distance in the directions along which the samples of the fit
            hardly differ (T 2.1.2; Jolliffe 2002, section 10.1); needs ``n_least``. A variance below the rounding error
            of the components' dtype, relative to the largest variance, counts as that.

        Returns
        -------
        array (n_samples,), float64; a Dask array for Dask arrays, Zarr arrays, stacks and paths. Costs 4 n d k or
        2 n d n_least operations.
        """
        if kind == "residual":
            return super().score_samples(X)
        if kind != "least-components":
            raise DataError(f"kind is {kind!r}: choose residual or least-components")
        check_is_fitted(self, "components_")
        if not hasattr(self, "least_components_"):
            raise DataError("this model has no least components: fit it with n_least of at least 1")
        floor = float(np.finfo(self.components_.dtype).eps) * float(self.explained_variance_[0])
        variances = np.maximum(self.least_variance_, max(floor, _LEAST_VARIANCE))
        least = LeastComponents(self.mean_, self.least_components_, variances)
        return self._each_sample(X, least_scores, least, (), np.float64)

    # -- what jobs and reports ask

    def check_before(self, n_samples: int) -> None:
        """Refuse parameters that cannot be fitted to so many samples, as far as the parameters alone tell."""
        # That there are no samples at all, ingest says better.
        self._wanted(n_samples or sys.maxsize, sys.maxsize)

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted."""
        return f"{'all' if self.n_components is None else self.n_components} components exactly or to a tolerance"

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        return super().report_numbers() | {"method": self.solver_, "passes": self.n_passes_}

    # -- keeping

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group; see `load`."""
        from dpca.models.pca_store import save_model

        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PCA:
        """Read a model that `save` wrote; nothing in it is executed.

        Raises
        ------
        StoreError
            If there is no such model, or it comes from a newer version.
        """
        from dpca.models.pca_store import load_model

        return load_model(path)


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} is {value!r}: give a whole number of at least {least}")
    return int(value)

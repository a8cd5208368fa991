"""The fit to samples with missing values: a pass that counts values, and passes of expectation-maximization."""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from dpca.choices import INFINITE
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.finite import NotFiniteError
from dpca.engine.sources.marked import UnmarkedSource
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.gaps import LowRank
from dpca.models.base.convergence import ConvergenceWarning, check_result, check_scale
from dpca.models.base.parameters import check_parameters, checked_rank
from dpca.models.base.passes import Passes
from dpca.partition.base import Partition
from dpca.rules.gaps.expectation import GapEM
from dpca.rules.gaps.present import PresentMoments, first_model
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole

#: Name of the solver in the attributes of a model.
GAP_SOLVER = "expectation-maximization"
# Bytes of the first samples that are searched for a missing value before a fit, unless one has many more.
_SEARCHED, _MOST_SEARCHED = 2**22, 2**26
# Share of the values that are held out.
_HELD_OUT = 0.02
# The least improvement of their error by so many passes, as a share of it. One pass says little: a start may be near a
# saddle, and what a component gains another one loses among the few that are held out.
_IMPROVEMENT, _WINDOW, _MOST_PASSES = 2e-3, 3, 100


@dataclass(frozen=True)
class GapModels:
    """The models of all parts of a partition.

    Attributes
    ----------
    models : list of LowRank
        Their mean is NaN, and their components are 0, at attributes without values.
    n_samples : int
    held_out_rmse : float
        Root of the mean squared error of the values that were held out; NaN if there were none.
    """

    models: list[LowRank]
    n_samples: int
    held_out_rmse: float

    def results(self, k: int) -> list[dict[str, Array]]:
        """Return the results of each part as those of `dpca.rules.covariance.covariance.CovariancePCA`."""
        return [model.result(k, self.n_samples) for model in self.models]


def rank_with_gaps(model: Any, required: Mapping[str, Any], n_features: int, n_samples: int | None) -> int:
    """Return the number of components of a fit to samples with missing values, after checks of the parameters.

    Parameters
    ----------
    model : estimator
    required : mapping
        The only values of some parameters that such a fit supports.
    n_features, n_samples : int
        Attributes of the largest part, and samples.

    Raises
    ------
    DataError
    """
    check_gap_parameters(model, required)
    return checked_rank(model.n_components, n_features, n_samples)


def check_gap_parameters(model: Any, required: Mapping[str, Any]) -> None:
    """Reject parameters that a fit to samples with missing values does not support; see `rank_with_gaps`."""
    check_parameters(model)
    for name, only in required.items():
        if (given := getattr(model, name)) != only:
            raise DataError(f"{name} is {given!r}, but gaps='iterate' requires {name}={only!r}")
    if not is_whole(model.n_components):
        raise DataError(f"n_components is {model.n_components!r}: gaps='iterate' requires an integer")


def fit_complete(fit: Callable[[Source], None], source: Source, missing: Any) -> bool:
    """Fit samples as if no value were missing. Return False at the first one that is, after at most one pass.

    So complete samples cost no pass that looks for missing values.

    Parameters
    ----------
    fit : callable (source)
        Fits to a source that rejects missing values.
    source : Source
        A source with gaps.
    missing : number, optional
        Marks a missing value, in addition to NaN. Infinity is rejected as NaN is.
    """
    complete = copy.copy(source)
    complete.with_gaps, complete.complete = False, True
    if missing is not None and missing != INFINITE:
        complete = UnmarkedSource(complete, missing)
    try:
        if math.prod(source.shape[1:]) * source.dtype.itemsize <= _MOST_SEARCHED:
            first_samples(complete, _SEARCHED)
        fit(complete)
    except (NotFiniteError, PlanError):  # sums with gaps may fit into the memory where others do not
        return False
    return True


def fit_gaps(
    passes: Passes, partition: Partition, k: int, missing: Any, seed: int, show: Callable[[GapModels], None]
) -> GapModels | None:
    """Fit a model of ``k`` components to each part, from the values that are there.

    Parameters
    ----------
    passes : Passes
        Over a source with gaps.
    partition : Partition
    k : int
    missing : number, optional
        Marks a missing value, in addition to NaN.
    seed : int
        Of the start and of the values to hold out.
    show : callable (GapModels)
        Receives the models after each pass.

    Returns
    -------
    GapModels or None
        None if no value is missing.

    Raises
    ------
    DataError
        If there are no values.
    PlanError
        If the sums of a pass do not fit into memory.

    Warns
    -----
    ConvergenceWarning
        If held-out values are still predicted better after 100 passes.
    """
    source = passes.source
    passes.plan(partition, GapEM(k))
    found = passes.over(partition, PresentMoments(missing), stage="count of values")
    if all(part["complete"] for part in found):
        return None
    if not any(part["count"].any() for part in found):
        raise DataError(f"all values of {source.name} are missing: give samples with values")
    models = [first_model(part, k, working_dtype(source.dtype), (seed, i)) for i, part in enumerate(found)]
    counts = [part["count"] for part in found]
    recent: deque[tuple[float, list[LowRank]]] = deque(maxlen=_WINDOW + 1)
    for turn in range(1, _MOST_PASSES + 1):
        results = passes.over(partition, GapEM(k, models, missing, _HELD_OUT, seed), stage=f"pass {turn}")
        error, uncertain = _error(results)
        recent.append((error, models))
        models = _models(results)
        if turn > _WINDOW and not error < (1 - _IMPROVEMENT) * recent[0][0]:
            least, best = min(recent, key=itemgetter(0))
            models = best if error > (1 + uncertain) * least else models
            break
        show(_finished(models, counts, source.shape[0], error))
    else:
        warnings.warn(
            f"gaps='iterate' has not converged after {_MOST_PASSES} passes: use fewer components, or leave out "
            f"samples and attributes with few values",
            ConvergenceWarning,
            stacklevel=5,
        )
    results = passes.over(partition, GapEM(k, models, missing), stage="last pass")
    return _finished(_models(results), counts, source.shape[0], min(error for error, _ in recent))


def _models(results: list[dict[str, Array]]) -> list[LowRank]:
    return [LowRank(part["components"], part["variances"], part["mean"], float(part["noise"])) for part in results]


def _error(results: list[dict[str, Array]]) -> tuple[float, float]:
    """Return the root mean squared error of held-out values, and its standard error, as a share of it.

    Without any, those of the values of the fit.
    """
    tested = sum(float(part["tested"]) for part in results)
    if tested:
        return math.sqrt(sum(float(part["error"]) for part in results) / tested), 1 / math.sqrt(2 * tested)
    return math.sqrt(np.mean([float(part["noise"]) for part in results])), 0.0


def _finished(models: list[LowRank], counts: list[Array], n: int, error: float) -> GapModels:
    """Return the models with NaN and 0 at attributes without values."""
    known = [model.known_at(count > 0) for model, count in zip(models, counts, strict=True)]
    return GapModels(known, n, error)


def check_gap_results(results: list[dict[str, Array]], k: int, name: str) -> None:
    """Reject results that are not finite, lost to the range of numbers, or of fewer attributes than components."""
    checked = [{**result, "mean": np.nan_to_num(result["mean"])} for result in results]
    for result in checked:
        check_result(result, GAP_SOLVER)
    check_scale(checked, GAP_SOLVER)
    most = max(len(result["components"]) for result in results)
    if most < k:
        raise DataError(f"n_components is {k}, but only {most} attributes of {name} have values: use at most {most}")


def require_counts(source: Source) -> None:
    """Reject weights of samples that are not whole numbers."""
    if source.weights is not None:
        raise DataError("gaps is 'iterate', which requires whole numbers in sample_weight: round the weights")

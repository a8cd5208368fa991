"""StreamingPCA: principal components in one pass over data of any size, by a choice of update rules."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.spread import plan_spread
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.convergence import (
    ConvergenceWarning,
    OrderWarning,
    check_result,
    check_scale,
    not_converged_message,
)
from dpca.models.base.docs import documented
from dpca.models.base.labelled import Labels
from dpca.models.base.parameters import check_parameters, checked_rank, explained_share
from dpca.models.base.passes import Passes
from dpca.models.base.samples import allows_gaps, first_magnitude, varied_source
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.gaps.gap_fit import check_gap_results, rank_with_gaps
from dpca.models.gaps.with_gaps import WithGaps
from dpca.models.linear.dual_solver import dual
from dpca.models.linear.pca_solvers import plan_first_pass
from dpca.models.linear.solver_problem import SolverProblem
from dpca.models.linear.with_variables import WithVariables
from dpca.models.streaming.execution import executed, spread_rule
from dpca.models.streaming.further_passes import further_pass, plan_further
from dpca.models.streaming.spread_store import SpreadStore
from dpca.models.streaming.streamed_model import CERTIFICATE, StreamedModel
from dpca.models.streaming.streaming_methods import (
    RuleStream,
    default_method,
    describe_option,
    make_rule,
    method_name,
    with_former_options,
)
from dpca.models.streaming.weighted_stream import weighted_stream
from dpca.parameters.declaration import declared_in
from dpca.parameters.streaming import AUTO, StreamingParameters
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.keeping import Keeping, pop_state
from dpca.rules.base.watched import moved
from dpca.rules.gaps.online import OnlineEM
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.errors import DataError
from dpca.storage.run import Run


@documented()
class StreamingPCA(StreamingParameters, WithVariables, WithGaps, StreamedModel):
    """Principal component analysis of a stream of samples, in one pass and constant memory.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {whole_samples}
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        Variances along the components (divisor n - 1), as the rule estimates them. If ``n_passes`` > 1, they are
        measured for the components before the last multiplication, and for "incremental-svd" half a step further, see
        `dpca.rules.covariance.measured.refined`. Then no variance exceeds its eigenvalue, and their sum does not
        exceed the captured variance.
    method_ : str
        Name of the update rule. "dual" if the basis of an exact method does not fit into the memory of a task, but the
        Gram matrix of at most 4,096 samples does. Then `PCA` with this solver computes the same.
    captured_bound_ : float
        Certificate: the stored components capture at least this share of the optimum. This is proven and includes
        rounding, see `dpca.rules.certificates.certificate`; nan if the rule has no bound.
    captured_estimate_, captured_estimate_error_ : float
        Estimate of the same share from up to 512 randomly drawn samples, and its standard error, see
        `dpca.rules.certificates.sampled`. nan if the rule keeps no samples: only "incremental-svd" keeps them, in one
        pass without forgetting. "covariance" has 1 and 0.
    residual_norms_ : array (n_components,), float64
        ||C v - lambda v|| of the components, measured in the last pass; only with ``n_passes`` > 1.
    angle_moved_ : float
        Certificate: the largest principal angle, in radians, between the components and earlier ones. These are the
        components before the last tenth of the stream, before the last pass, before the last `merge` (also that of
        segments merged as a tree), or, after `partial_fit`, those that were last read. nan if there are none.
    variance_moved_ : float
        Certificate: share of the captured variance that lies outside those earlier components.

    Notes
    -----
    One pass costs n d (4 q + 200) operations for "incremental-svd", q = n_components + oversampling, and memory for
    2 q rows of d and one batch; n d^2 for "covariance", 8 d^2 bytes and a batch.
    {where}

    If the basis of "incremental-svd", or its product of a further pass, does not fit into a task, it is spread over
    all tasks by blocks of attributes. Each task then needs its share of this memory. The result is the same up to
    rounding error. With ``n_passes`` > 1, your process holds all q directions.

    A fit that has not converged gives a `ConvergenceWarning`: if ``variance_moved_`` is more than 2 % and, for
    "incremental-svd", ``captured_bound_`` is below 0.9.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import StreamingPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (300, 20, 30), dtype=np.uint8)
    >>> model = StreamingPCA(5, random_state=0).fit(images)
    >>> model.transform(images).shape
    (300, 5)
    """

    store_kind: ClassVar[str] = "streaming-pca"
    fills_in_one_pass: ClassVar[bool] = True
    any_weights: ClassVar[bool] = True
    kept_facts: ClassVar[dict[str, type]] = dict.fromkeys(CERTIFICATE, float) | {"method": str}

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        if self.track_scores:
            raise DataError(
                "track_scores=True requires partial_fit, and fit does not support it: omit it, and use transform"
            )
        source = varied_source(self, X)
        first, center = Passes(source, run, callbacks=callbacks), bool(self.center) and source.weights is None
        shape, seed, dtype, weights = tuple(source.shape[1:]), self._seed(), source.dtype, source.weights
        whole, method, known = Whole(shape), self._method(math.prod(shape)), dict[str, Array]()
        kept: Any = self._rule_to_keep(method, math.prod(shape), dtype, seed) if self.keep_state else None
        if weights is not None:
            source, known = weighted_stream(self, source, first, kept)
        first.source = stream = shuffle(source, seed) if self.shuffle else source
        rule = self._rule(method, math.prod(shape), source.shape[0], seed, source.dtype, center=center)
        self.method_ = method_name(method)
        if self.keep_state:
            rule = replace(rule, rule=Keeping(rule.rule))
        work, scheme = executed(rule, self, run)
        if self.n_passes > 1:
            plan_further(work, first)
        if rule.random_order and not source.in_process and not self.shuffle:
            other = "PCA" if allows_gaps(self) else "method='incremental-svd'"
            warnings.warn(
                f"{self.method_} assumes samples in random order, but the order of {source.name} is unknown: use "
                f"shuffle=True, or {other}, which supports any order",
                OrderWarning,
                stacklevel=3,
            )
        values, set_results = partial(first_magnitude, stream), named_errors(self._set_results, source.name)

        def set_fitted(model: Any, found: dict[str, Array], n: int) -> None:
            state, found = pop_state(found), model._truncated(found) | known
            named_errors(model._set_results, source.name)(found, self.method_, shape, n, partial(values, n))
            model._states = model._previous_components = None
            if self.keep_state and (weights is None or n == source.shape[0]):
                if weights is not None:
                    state = kept.of_weighted_rows(state, known["mean"], float(weights.sum()), dtype)
                model._resume_from(state, method, math.prod(shape), dtype, seed)

        first.set_fitted = set_fitted
        try:
            (found,) = first.over(
                whole, work, scheme=scheme, stage="fit", result_so_far=lambda states: work.finish(states[0])
            )
        except PlanError as error:
            if (problem := self._few_samples(source, method, run)) is not None:
                first = Passes(source, run, callbacks=callbacks, set_fitted=set_fitted)
                problem = replace(problem, center=center)
                found, self.method_ = named_errors(dual, source.name)(problem, first), "dual"
                found |= {"captured_estimate": np.ones(()), "captured_estimate_error": np.zeros(())}
            else:
                first = Passes(stream, run, callbacks=callbacks, set_fitted=set_fitted)
                work = spread_rule(work, self, first.run.n_parallel(), error)
                store = SpreadStore.needed(work, stream, first.run, int(self.n_components))
                found = first.spread(work, stage="fit", result_so_far=itemgetter(0), store=store)
        set_fitted(self, found, source.shape[0])
        self.fit_report_ = first.report
        for turn in range(1, self.n_passes):
            before, stage = self.components_, f"pass {turn + 1}"
            further = Passes(source, run, callbacks=callbacks, set_fitted=_as_it_is)
            further.report = first.report
            further.show(None)
            found = further_pass(further, found, before, stage, center=center)
            set_results(found | known, stage, shape, source.shape[0], partial(values, source.shape[0]), before)
        if advice := not_converged_message(self.method_, self.variance_moved_, self.angle_moved_, self.captured_bound_):
            warnings.warn(advice, ConvergenceWarning, stacklevel=3)

    def _set_results(
        self,
        found: dict[str, Array],
        what: str,
        sample_shape: tuple[int, ...],
        n: int,
        values: Callable[[], float],
        before: Array | None = None,
    ) -> None:
        """Set the fitted attributes from a finite result.

        ``values`` returns the magnitude of the samples; ``before`` are the previous components, if any.
        """
        exact = self.method_ in ("incremental-svd", "covariance", "dual")
        remedy = "" if exact else ", or use method='incremental-svd'"
        dtype = None if exact else found["components"].dtype
        if allows_gaps(self):
            check_gap_results([found], int(self.n_components), what)
        else:
            check_scale([check_result(found, what, otherwise=remedy)], what, dtype, values)
        self._set_fitted(found, sample_shape, n)
        if before is not None:
            self.angle_moved_, self.variance_moved_ = moved(before, self.components_, self.explained_variance_)

    def _rule(
        self,
        method: str | StreamingRule,
        d: int,
        n: int | None,
        seed: int,
        dtype: DTypeLike = np.float32,
        *,
        center: bool | None = None,
    ) -> Any:
        check_parameters(self)
        if allows_gaps(self):
            required = {"center": True, "whiten": False, "n_passes": 1, "method": AUTO, "track_scores": False}
            rank_with_gaps(self, required, d, n)
        share = explained_share(self.n_components)
        k = d if share is not None else checked_rank(self.n_components, d, n)
        if share is not None and method_name(method) not in ("covariance", "StreamingCovariance"):
            raise DataError(
                f"n_components is {share:g}, a share of the variance, but {method_name(method)} does not find all "
                f"components: use an integer, method='covariance', or PCA"
            )
        # The second pass multiplies all directions of the first. This bounds the variance of all other directions.
        known = method == "incremental-svd" or isinstance(method, IncrementalSVD)
        wide = True if known and self.n_passes > 1 else None
        return make_rule(
            method,
            k,
            center=bool(self.center) if center is None else center,
            batch_size=self.batch_size,
            seed=seed,
            options={**self._options(), "wide": wide},
            # The movement of all components together does not show the convergence of the retained ones.
            stream=RuleStream(
                n if share is None else None,
                d,
                np.dtype(dtype).itemsize,
                sampled=self.n_passes == 1,
                ends=not self.keep_state,
            ),
        )

    def _few_samples(self, source: Source, method: str | StreamingRule, run: Run) -> SolverProblem | None:
        """Return the problem for the exact solver of few samples, None if it cannot do what the parameters ask for."""
        n, d, own = source.shape[0], math.prod(source.shape[1:]), (self.batch_size, self.oversampling, self.forgetting)
        one_pass = self.n_passes == 1 and self.execution == "auto" and own == (None, None, None)
        whole = self.keep_state or explained_share(self.n_components) is not None
        if method not in ("incremental-svd", "covariance") or not one_pass or whole or n > d:
            return None
        dtype = working_dtype(source.dtype)
        problem = SolverProblem(n, d, checked_rank(self.n_components, d, n), dtype=dtype, center=bool(self.center))
        try:
            plan_first_pass("dual", problem, Passes(source, run))
        except PlanError:
            return None
        return problem

    def _options(self) -> dict[str, Any]:
        return {"oversampling": self.oversampling, "forgetting": self.forgetting}

    def _method(self, d: int) -> str | StreamingRule:
        if allows_gaps(self):
            return OnlineEM(missing=self.missing_value)
        if self.track_scores and self.method not in (AUTO, "incremental-svd"):
            raise DataError(
                f"track_scores=True requires method='incremental-svd', not {method_name(self.method)}: omit one of them"
            )
        if self.method != AUTO or self.track_scores:
            return "incremental-svd" if self.track_scores else self.method
        k = d if explained_share(self.n_components) is not None else checked_rank(self.n_components, d, None)
        return default_method(k, d, self._options())

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        source, shape = self._planned(source), tuple(source.shape[1:])
        run = run.limited_to(self.memory_budget)
        method = self._method(math.prod(shape))
        work, scheme = executed(self._rule(method, math.prod(shape), source.shape[0], 0, source.dtype), self, run)
        stream, whole = shuffle(source, 0) if self.shuffle else source, Whole(shape)
        try:
            plan_for(work, stream, whole, scheme=scheme, run=run)
        except PlanError as error:
            if self._few_samples(source, method, run) is None:
                run = Passes(stream, run).run
                work = spread_rule(work, self, run.n_parallel(), error)
                store = SpreadStore.needed(work, stream, run, int(self.n_components))
                plan_spread(work, stream, run, stored=store is not None)
        if self.n_passes > 1:
            plan_further(work, Passes(source, run))
        basis, known = self._basis_to_be(source, int(self.n_components))
        return self._planned_basis(basis), known

    def _stream_of(self, X: Any, run: Run, labels: Labels | None) -> Source:
        fresh, source = self._states is None, super()._stream_of(X, run, labels)
        return self._weighted_stream(source, labels, fresh=fresh)

    def merge(self, other: StreamedModel) -> Self:
        """Merge with another estimator, as `StreamedModel.merge`; both have the same weights of attributes."""
        if isinstance(other, StreamingPCA):
            self._require_weights_of(other)
        return super().merge(other)

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        super()._set_fitted(found, sample_shape, n)
        if not hasattr(self, "method_"):  # stores of the first versions do not contain it
            self.method_ = method_name(self.method)
        if "residual_norms" in found:
            self.residual_norms_ = found["residual_norms"]  # measured now, not estimated
        for name in CERTIFICATE[1:]:
            setattr(self, f"{name}_", float(found.get(name, np.nan)))

    @property
    def basis_(self) -> LinearRepresentation:
        """The mean and the components, as tasks receive them."""
        return self._with_weights(self._with_gaps(super().basis_))

    # -- for jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Raise `DataError` if the parameters alone show that a fit to this many samples fails."""
        # Ingest has a better message for a source without samples.
        d = sys.maxsize if explained_share(self.n_components) is None else 1
        self._rule(self._method(d), d, n_samples or None, 0)

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit."""
        passes = "1 pass" if self.n_passes == 1 else f"{self.n_passes} passes"
        by = "" if self.method == AUTO else f" by {method_name(self.method)}"
        share = explained_share(self.n_components)
        what = f"{self.n_components} components" if share is None else f"{100 * share:g} % of the variance"
        return f"{what}{by} in {passes}"

    def job_settings(self) -> dict[str, Any]:
        """Return the settings that identify a job with this estimator; their form never changes."""
        given = self._given_parameters()
        seed = given.pop("random_state", None)
        names = ("n_components", "method", "n_passes", "batch_size", "oversampling", "shuffle")
        always = {name: describe_option(getattr(self, name)) for name in names}
        return given | always | {"seed": seed}

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        numbers = super().report_numbers() | {"method": self.method_, "passes": self.n_passes}
        # An exact method needs no estimate.
        names = ("captured_estimate", "captured_estimate_error") if self.captured_estimate_error_ > 0 else ()
        return numbers | {name: getattr(self, f"{name}_") for name in names}

    # -- on disk

    def _to_store(self) -> StoreContents:
        return self._with_stored_weights(super()._to_store())

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        return super()._from_store(stored)._restore_weights(stored)

    @classmethod
    def _restored_parameters(cls, stored: StoredModel) -> dict[str, Any]:
        given = stored.parameters(cls)
        return given | with_former_options(given["method"], stored.facts["parameters"], declared_in(cls))


def _as_it_is(model: Any, found: Any, n: int) -> None:
    """Leave a copy of an estimator unchanged: it is already fitted by a whole pass."""

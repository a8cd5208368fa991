"""StreamingPCA: principal components in one pass over data of any size, by any of the field's update rules."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpca.engine.folds.boundary import guarded
from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.convergence import ConvergenceWarning, OrderWarning, check_result, check_scale, unsettled
from dpca.models.base.docs import documented
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.parameters import checked_rank, explained_share
from dpca.models.base.passes import Passes
from dpca.models.base.samples import first_magnitude, varied_source
from dpca.models.streaming.execution import executed
from dpca.models.streaming.streamed_model import CERTIFICATE, StreamedModel
from dpca.models.streaming.streaming_methods import (
    AUTO,
    FORMER_OPTIONS,
    default_method,
    describe_option,
    make_rule,
    method_name,
    translate_parameters,
)
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.keeping import Keeping, taken_state
from dpca.rules.base.watched import moved
from dpca.rules.covariance.covariance import is_exact
from dpca.rules.covariance.covariance_product import refinement
from dpca.rules.covariance.measured import refined
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number


@documented()
@dataclass(eq=False, repr=False)
class StreamingPCA(StreamedModel):
    """Principal component analysis of a stream of samples, in one pass and memory that does not grow.

    Parameters
    ----------
    n_components : int or float
        Components to find; a number between 0 and 1 stands for the fewest that explain more than this share of the
        variance, which takes the method "covariance".
    method : str or rule
        The update rule, by name or as an object of `dpca.rules` with options of its own, such as
        ``Oja(schedule=Harmonic(1.0))``, in which the estimator fills in ``n_components``, ``center`` and ``seed``.
        "auto" is "covariance" for samples of few attributes, of 8 bits of more, and "incremental-svd" for others, see
        `dpca.models.streaming.streaming_methods.default_method`. "covariance" is exact; "incremental-svd" (Brand 2002;
        Ross et
        al. 2008) is close to that after one pass in any order of samples. Both merge, so that segments are folded side
        by side. The others are the sequential rules of the field, each described where it is defined in `dpca.rules`:
        "oja", "oja-subspace", "krasulina", "sanger", "implicit-krasulina", "block-power", "accelerated-block-power",
        "accelerated-oja", "ccipca", "ipca" and "similarity-matching". They assume samples in random order and run as a
        chain, one segment after the other, unless ``execution`` says otherwise.
    batch_size : int, optional
        Samples of one update, whatever the chunks of the store; default what the rule does best with: 4,096 for
        "covariance", 1,024 for "incremental-svd" and 100 for most others, but at most 256 MiB in float32.
    n_passes : int
        Passes over the data. Each one after the first multiplies the components by the covariance (orthogonal
        iteration with Rayleigh-Ritz, Alakkari 2020, section 3.4.5; Arora 2015, section 5.3) and measures exactly what
        they capture. Those of "incremental-svd" multiply all its directions, which proves nearly all that is captured:
        ``captured_bound_`` lacks little more than what rounding could cost where there is a gap in the spectrum (MNIST,
        k = 20, random order: 5e-5, .10 after one pass).
    center : bool
        Whether to subtract the mean: exactly in one pass by the rules that merge, the running mean by others.
    shuffle : bool
        Take the samples in a random order in the first pass: whole chunks in a random order, the samples of several of
        them mixed. Stores of sorted images need that for all rules but those that merge.
    execution : str
        How samples are shared among workers. "auto": segments side by side, merged as a tree, by a rule that merges,
        and a chain otherwise. "chain": one stream, whatever the rule. "averaged": ``n_streams`` streams of samples,
        averaged after every ``round_size`` samples of each (Amid & Warmuth 2020, equation 18), by "implicit-krasulina"
        and, with less reason, "oja", "oja-subspace", "krasulina", "sanger" and "accelerated-oja". "data-parallel": the
        batch of one update spread over workers, by "oja", "block-power", "accelerated-block-power" and
        "accelerated-oja"; take a large ``batch_size`` (default 1,000). `partial_fit` is always a chain.
    n_streams : int, optional
        Streams that are averaged, default 10: the result depends on their number, not on that of workers. Or parts of a
        batch, default one for each that can run at once: the result depends on it by rounding only.
    round_size : int, optional
        Samples that each stream takes between two averages: whole batches, default 1,000 samples.
    random_state : int, RandomState or None
        Seed of the random start, of random schedules and of the order. A fit that is to be resumed needs an int.
    {memory_budget}
    oversampling, forgetting
        Options of "incremental-svd", which "auto" is where they are given: extra directions to keep, default 60; weight
        of a sample relative to the next.
    {whiten}
    {keep_state}
        Of one pass: it does not go with ``n_passes`` > 1.
    track_scores : bool
        Whether `partial_fit` keeps the scores of all samples so far, and turns them along with the components, so that
        no sample is looked at twice: in `tracked_scores_`. Only by "incremental-svd", which "auto" is then.

    Attributes
    ----------
    {whole_samples}
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        Variances along the components as the rule estimates them (divisor n - 1). Measured where ``n_passes`` > 1: for
        the components before the last multiplication, and of "incremental-svd" half a step further, see
        `dpca.rules.covariance.measured.refined`: none is more than its eigenvalue, and their sum no more than what the
        components capture.
    method_ : str
        What the update rule is called.
    captured_bound_ : float
        Certificate: the captured variance is at least this share of what the best components would capture, as they
        are stored: a proof, rounding counted in, see `dpca.rules.certificates.certificate`; nan where the rule knows
        no bound.
    captured_estimate_, captured_estimate_error_ : float
        The same share as it is estimated from up to 512 samples that were drawn at random, and its standard error, see
        `dpca.rules.certificates.sampled`; nan where the rule keeps no samples: only "incremental-svd" does, in one
        pass without
        forgetting. "covariance" has 1 and 0.
    residual_norms_ : array (n_components,), float64
        ||C v - lambda v|| of the components measured in the last pass; only with ``n_passes`` > 1.
    angle_moved_ : float
        Certificate: the largest principal angle, in radians, between the components and those before the last tenth of
        the stream (or before the last pass or `merge`; of segments merged as a tree: before its last merge; after
        `partial_fit`: those that were last looked at). nan where there was no such part.
    variance_moved_ : float
        Certificate: share of the captured variance that lies outside those earlier components.

    Notes
    -----
    One pass costs n d (4 q + 200) operations for "incremental-svd", q = n_components + oversampling, and memory for
    2 q rows of d and one batch; n d^2 for "covariance", 8 d^2 bytes and a batch.
    {where}

    A fit that has not converged gives a `ConvergenceWarning`: where ``variance_moved_`` is more than 2 %, and, for
    "incremental-svd", ``captured_bound_`` is below 0.9, too.

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
    kept_facts: ClassVar[dict[str, type]] = dict.fromkeys(CERTIFICATE, float) | {"method": str}
    parameters_not_kept: ClassVar[tuple[str, ...]] = ("n_components", *LinearModel.parameters_not_kept)

    n_components: int | float
    _: KW_ONLY
    method: str | StreamingRule = AUTO
    batch_size: int | None = None
    n_passes: int = 1
    center: bool = True
    shuffle: bool = False
    execution: str = "auto"
    n_streams: int | None = None
    round_size: int | None = None
    random_state: Any = None
    memory_budget: int | None = None
    oversampling: int | None = None
    forgetting: float | None = None
    whiten: bool = False
    keep_state: bool = False
    track_scores: bool = False

    def _fit(self, X: Any, **running: Any) -> None:
        n_passes = whole_number(self.n_passes, "n_passes", 1)
        if self.track_scores:
            raise DataError(
                "track_scores=True is for partial_fit, which sees no sample again: leave it out, and ask transform"
            )
        source = varied_source(self, X)
        shape, seed = tuple(source.shape[1:]), self._seed()
        stream = shuffle(source, seed) if self.shuffle else source
        first, whole = Passes(stream, memory_budget=self.memory_budget, **running), Whole(shape)
        method = self._method(math.prod(shape), source, first.budget)
        rule = self._rule(method, math.prod(shape), source.shape[0], seed)
        self.method_ = method_name(method)
        if self.keep_state:
            self._check_going_on(method, math.prod(shape), source.dtype, seed)
            rule = replace(rule, rule=Keeping(rule.rule))
        work, scheme = executed(rule, self, running["client"])
        if rule.random_order and not source.in_process and not self.shuffle:
            warnings.warn(
                f"{self.method_} assumes samples in random order and the order of {source.name} is not "
                f"known to be: use shuffle=True, or method='incremental-svd', which takes any order",
                OrderWarning,
                stacklevel=3,
            )
        values, settle = partial(first_magnitude, stream), guarded(self._settle, source.name)

        def learn(model: Any, found: dict[str, Array], n: int) -> None:
            state, found = taken_state(found), model._kept_of(found)
            guarded(model._settle, source.name)(found, self.method_, shape, n, partial(values, n))
            model._states = model._looked_at = None
            if self.keep_state:
                model._go_on_from(state, method, math.prod(shape), source.dtype, seed)

        first.settle = learn
        try:
            (found,) = first.over(whole, work, scheme=scheme, stage="fit", look=lambda states: work.finish(states[0]))
        except PlanError as error:
            if self.method_ == "covariance":
                raise
            raise PlanError(f"{error}, or a smaller batch_size") from error
        learn(self, found, source.shape[0])
        self.fit_report_ = first.report
        for turn in range(1, n_passes):
            before, stage = self.components_, f"pass {turn + 1}"
            refine = refinement(found, before, self.mean_, bool(self.center))
            further = Passes(source, memory_budget=self.memory_budget, **running, settle=_as_it_is)
            further.report = first.report
            further.show(None)
            (found,) = further.over(whole, refine, stage=stage)
            found = refined(found, before)
            settle(found, stage, shape, source.shape[0], partial(values, source.shape[0]), before)
        if advice := unsettled(self.method_, self.variance_moved_, self.angle_moved_, self.captured_bound_):
            warnings.warn(advice, ConvergenceWarning, stacklevel=3)

    def _settle(
        self,
        found: dict[str, Array],
        what: str,
        sample_shape: tuple[int, ...],
        n: int,
        values: Callable[[], float],
        before: Array | None = None,
    ) -> None:
        """Learn what was found, unless it is not finite.

        ``values`` returns the magnitude of the samples; ``before`` are the components until then, if any.
        """
        exact = self.method_ in ("incremental-svd", "covariance")
        remedy = "" if exact else ", or use method='incremental-svd'"
        dtype = None if exact else found["components"].dtype
        check_scale([check_result(found, what, otherwise=remedy)], what, dtype, values)
        self._learned(found, sample_shape, n)
        if before is not None:
            self.angle_moved_, self.variance_moved_ = moved(before, self.components_, self.explained_variance_)

    def _rule(self, method: str | StreamingRule, d: int, n: int | None, seed: int) -> Any:
        share = explained_share(self.n_components)
        k = d if share is not None else checked_rank(self.n_components, d, n)
        if share is not None and method_name(method) not in ("covariance", "StreamingCovariance"):
            raise DataError(
                f"n_components is {share:g}, a share of the variance, but {method_name(method)} does not find all "
                f"components: give a number, or use method='covariance', or PCA"
            )
        # The second pass multiplies all directions of the first, which bounds what all others hold.
        known = method == "incremental-svd" or isinstance(method, IncrementalSVD)
        wide = True if known and self.n_passes > 1 else None
        return make_rule(
            method,
            k,
            center=bool(self.center),
            batch_size=self.batch_size,
            seed=seed,
            options={**self._options(), "wide": wide},
            # How far all components move together says nothing of those that will be kept.
            n_samples=n if share is None else None,
            n_features=d,
            sampled=self.n_passes == 1,
            ends=not self.keep_state,
        )

    def _options(self) -> dict[str, Any]:
        return {"oversampling": self.oversampling, "forgetting": self.forgetting}

    def _method(self, d: int, source: Source | None = None, room: int = 0) -> str | StreamingRule:
        if self.track_scores and self.method not in (AUTO, "incremental-svd"):
            raise DataError(
                f"track_scores=True is for method='incremental-svd', not {method_name(self.method)}: leave one of them "
                f"out"
            )
        if self.method != AUTO or self.track_scores:
            return "incremental-svd" if self.track_scores else self.method
        k = d if explained_share(self.n_components) is not None else checked_rank(self.n_components, d, None)
        if source is None:
            return default_method(k, d, self._options())
        return default_method(k, d, self._options(), is_exact(source.dtype), source.shape[0], room)

    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        shape = tuple(source.shape[1:])
        room = Passes(source, client=client, memory_budget=self.memory_budget).budget
        method = self._method(math.prod(shape), source, room)
        work, scheme = executed(self._rule(method, math.prod(shape), source.shape[0], 0), self, client)
        stream, whole = shuffle(source, 0) if self.shuffle else source, Whole(shape)
        plan_for(work, stream, whole, scheme=scheme, client=client, budget=self.memory_budget)
        return self._basis_to_be(source, int(self.n_components))

    def _learned(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        super()._learned(found, sample_shape, n)
        if not hasattr(self, "method_"):  # stores did not state it before there was a choice
            self.method_ = method_name(self.method)
        if "residual_norms" in found:
            self.residual_norms_ = found["residual_norms"]  # measured now, not estimated
        for name in CERTIFICATE[1:]:
            setattr(self, f"{name}_", float(found.get(name, np.nan)))

    # -- what jobs and reports ask

    def check_before(self, n_samples: int) -> None:
        """Refuse parameters that cannot be fitted to so many samples, as far as the parameters alone tell."""
        # That there are no samples at all, ingest says better.
        d = sys.maxsize if explained_share(self.n_components) is None else 1
        self._rule(self._method(d), d, n_samples or None, 0)

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted."""
        passes = "1 pass" if self.n_passes == 1 else f"{self.n_passes} passes"
        by = "" if self.method == AUTO else f" by {method_name(self.method)}"
        share = explained_share(self.n_components)
        what = f"{self.n_components} components" if share is None else f"{100 * share:g} % of the variance"
        return f"{what}{by} in {passes}"

    def job_settings(self) -> dict[str, Any]:
        """Return what identifies a job on this estimator, in the form that jobs have always had."""
        given = self._given_parameters()
        seed = given.pop("random_state", None)
        names = ("n_components", "method", "n_passes", "batch_size", "oversampling", "shuffle")
        always = {name: describe_option(getattr(self, name)) for name in names}
        return given | always | {"seed": seed}

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        numbers = super().report_numbers() | {"method": self.method_, "passes": self.n_passes}
        # What is exact needs no estimate.
        names = ("captured_estimate", "captured_estimate_error") if self.captured_estimate_error_ > 0 else ()
        return numbers | {name: getattr(self, f"{name}_") for name in names}

    def fit_settings(self) -> dict[str, Any]:
        """Return what identifies a stored fit; options of rules were parameters once, and stay None in it."""
        return dict.fromkeys(FORMER_OPTIONS) | super().fit_settings()

    # -- keeping

    @classmethod
    def _restored_parameters(cls, given: dict[str, Any]) -> dict[str, Any]:
        return translate_parameters(given, cls._kept_parameters())


def _as_it_is(model: Any, found: Any, n: int) -> None:
    """Let a copy of an estimator that has learned from a whole pass know what it knows."""

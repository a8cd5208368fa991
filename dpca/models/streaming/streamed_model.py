"""Base of `StreamingPCA`: batches update a state, and the components are computed when they are first read."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.callbacks import Pace
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import EVERY, Progress, checked_budgets, positive_seconds
from dpca.models.base.labelled import Labels
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.parameters import are_ordinary, check_parameters, check_states_fit
from dpca.models.base.passes import run_of_fit
from dpca.models.base.samples import allows_gaps, fractions_of, magnitude, varied_source
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.streaming.iterating import iterate
from dpca.models.streaming.stored_states import (
    NoStateError,
    RequiresState,
    read_states,
    set_aside,
    stated_dtype,
    stored_arrays,
)
from dpca.models.streaming.streaming_methods import method_name
from dpca.models.streaming.tracked import TRACKED, TrackedScores
from dpca.models.streaming.weighted_stream import stream_to_iterate
from dpca.parameters.streaming import AUTO
from dpca.representation.whitened import Whitened
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.state import State
from dpca.storage.errors import DataError
from dpca.storage.run import Run

#: Measures of the error of a fit.
CERTIFICATE = ("captured_bound", "captured_estimate", "captured_estimate_error", "angle_moved", "variance_moved")
_COMPONENTS = ("components", "mean", "explained_variance", "explained_variance_ratio", "singular_values")
# Attributes that `partial_fit` does not compute, but `__getattr__`.
_FOUND = {f"{name}_" for name in (*_COMPONENTS, "total_variance", "n_components", *CERTIFICATE)}
# What to use instead of a merge, without and with gaps.
_INSTEAD = (
    "use method='incremental-svd'",
    "its sums are expectations under a model that each stream found itself; give all samples to one StreamingPCA, or "
    "fit PCA with gaps='iterate'",
)


class StreamedModel(LinearModel):
    """Base of `StreamingPCA`: `partial_fit`, `merge` and `iter_fit`. The subclass makes the rule and fits the model."""

    method_: str

    n_passes: int
    shuffle: bool
    keep_state: bool
    track_scores: bool
    _magnitude: float = 0.0  # of the first batch of `partial_fit` that is not all 0
    _tracked: TrackedScores  # with ``track_scores``, the scores of all samples of complete batches

    @abstractmethod
    def _rule(
        self, method: str | StreamingRule, d: int, n: int | None, seed: int, dtype: DTypeLike = np.float32
    ) -> Any:
        """Return the rule, with its batches, for n samples of d attributes of a dtype, or for any number (None)."""

    @abstractmethod
    def _method(self, d: int) -> str | StreamingRule:
        """Return the method for samples of ``d`` attributes."""

    @abstractmethod
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

    @RequiresState
    def partial_fit(
        self, X: Any, y: Any = None, *, sample_weight: Any = None, sample_dim: str | Sequence[str] | None = None
    ) -> Self:
        """Update the model with further samples in memory.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape and dtype. A rejected batch changes nothing.
        sample_weight, sample_dim
            As in `fit`, but ``n_samples_seen_`` is the sum of all weights. Weights that are not whole numbers require
            "incremental-svd" or "covariance". The dims are those of the first ``DataArray``.

        Raises
        ------
        DataError
            If `fit` or `load` made the model without ``keep_state``, the samples do not match the earlier ones, or the
            rule diverges.

        Notes
        -----
        Costs as much as the update of the rule. The components are computed from the state when they are first read.
        """
        fresh = self._states is None
        if fresh:
            check_parameters(self)
        X = self._batch(X, sample_dim, sample_weight)
        rows = np.ascontiguousarray(X.reshape(len(X), -1))
        if fresh:
            method = self._method(rows.shape[1])
            self._begin(method, rows.shape[1], rows.dtype, self._seed())
            self.method_, self.sample_shape_, self._magnitude = method_name(method), tuple(X.shape[1:]), 0.0
        if rows.dtype != self._stream_dtype or tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"this batch has samples of {tuple(X.shape[1:])} {rows.dtype}, but the first batch has "
                f"{self.sample_shape_} {self._stream_dtype}: use the same shape and dtype in all batches"
            )
        state = (
            self._states[0] if self._states else named_errors(self._stream_rule.init, "X")(rows.shape[1], rows.dtype)
        )
        self._magnitude = self._magnitude or named_errors(magnitude, "X")(rows)
        if (weights := fractions_of(sample_weight)) is not None:
            if self.track_scores:
                raise DataError("track_scores=True requires whole numbers in sample_weight: omit it, or round them")
            updated = named_errors(self._stream_rule.weigh, "X")(state.copy(), rows, weights)
            # As below, but a sum of weights below 1 has no components yet.
            (self._set_state if are_ordinary(rows) else self._find)(updated)
        elif are_ordinary(rows):
            self._set_state(self._taken(state, rows))
        else:
            # Such values may overflow in the rule, so its result is checked at once.
            updated = named_errors(self._stream_rule.update, "X")(state.copy(), rows)
            self._find(updated)
            self._track(state, updated, state.arrays["buffered_rows"][: state.counts["n_held"]], rows)
        return self

    @property
    def tracked_scores_(self) -> Array:
        """Scores (n_samples, n_components) of all samples of `partial_fit` along ``components_``.

        In the order of the samples; only with ``track_scores``. The parts of a sample outside of the directions that
        the rule kept at the time are lost. The scores are computed when they are read, with 2 n q k operations and some
        products of q x d, with q = n_components + oversampling. The model holds q numbers per sample, and an update
        costs 1.5 times as much as without them.
        """
        if not self.track_scores or self._states is None:
            raise NoStateError("no scores were tracked: use track_scores=True with partial_fit, or transform")
        basis, state = self.basis_, self._states[0]
        waiting = state.arrays["buffered_rows"][: state.counts["n_held"]]
        scores = self._tracked.by(state, basis.components, basis.mean, waiting)
        return scores / basis.scales.astype(scores.dtype) if isinstance(basis, Whitened) else scores

    def _track(self, before: State, after: State, held: Array, rows: Array) -> None:
        """Add the scores of the samples between two states, of the batches ``held`` and ``rows``."""
        n = after.counts["n_samples"] - before.counts["n_samples"]
        if self.track_scores and n:
            self._tracked.taken(before, after, [held, rows[: n - len(held)]])

    def _begin(self, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> None:
        """Set the rule, dtype and seed of all batches."""
        self._stream_rule, self._stream_dtype, self._stream_seed = self._rule(method, d, None, seed, dtype), dtype, seed
        check_states_fit(self._stream_rule, [d], dtype)
        self._tracked = TrackedScores()

    def _rule_to_keep(self, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> Any:
        """Return the rule of a state; raise an error if a fit has none, or one that does not fit into memory."""
        if self.n_passes > 1:
            raise DataError(f"keep_state=True requires n_passes=1, but n_passes is {self.n_passes}: omit one of them")
        check_states_fit(rule := self._rule(method, d, None, seed, dtype), [d], dtype)
        return rule

    def _resume_from(self, found: State, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> None:
        """Keep the state of a fit, without samples that wait for a batch."""
        self._begin(method, d, dtype, seed)
        state = self._stream_rule.init(d, dtype)
        for own, others in ((state.arrays, found.arrays), (state.counts, found.counts)):
            own.update({name: others[name] for name in own if name in others})
        self._states, self.n_samples_seen_ = [state], state.counts["n_samples"]

    def _to_store(self) -> StoreContents:
        contents = super()._to_store()
        if not (self.keep_state and self._states):
            return contents
        state, n_held = self._states[0], self._states[0].counts["n_held"]
        facts = {"seed": self._stream_seed, "dtype": str(self._stream_dtype), "n_held": n_held}
        if isinstance(self.n_components, float):
            facts["n_components"] = self.n_components
        tracked = self._tracked.arrays() if self.track_scores else {}
        if tracked:
            facts["tracked"] = [len(tracked["tracked_scores"]), *tracked["tracked_turns"].shape]
        filled = State({**state.arrays, "buffered_rows": state.arrays["buffered_rows"][:n_held]}, state.counts)
        further = {name: (values, TRACKED[name]) for name, values in tracked.items()} | stored_arrays([filled])
        return replace(contents, arrays={**contents.arrays, **further}, facts={**contents.facts, "state": facts})

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        model = super()._from_store(stored)
        if (facts := stored.facts.get("state")) is not None:
            d, dtype, n_held = model.n_features_in_, stated_dtype(facts), int(facts["n_held"])
            model.n_components = facts.get("n_components", model.n_components)
            # The state belongs to the method of the stored fit, even if "auto" selects another one now.
            chosen = model._method(d) if allows_gaps(model) else model.method_
            model._begin(chosen if model.method == AUTO else model.method, d, dtype, int(facts["seed"]))
            state = model._stream_rule.init(d, dtype)
            room = state.arrays["buffered_rows"]
            if not 0 <= n_held <= len(room):
                raise ValueError(f"it holds {n_held} samples of a batch of {len(room)}")
            state.arrays["buffered_rows"] = room[:n_held]
            read_states(stored, [state])
            state.arrays["buffered_rows"] = room
            if (state.counts["n_held"], state.counts["n_samples"]) != (n_held, stored.n_samples - n_held):
                raise ValueError(f"its state contains {state.counts['n_samples']} samples")
            model._states = [state]
            if tracked := facts.get("tracked"):
                size, parts, q, _ = map(int, tracked)
                shapes = dict(zip(TRACKED, [(size,), (parts, q, q), (parts, q), (parts,)], strict=True))
                model._tracked = TrackedScores.of(stored.arrays(shapes, integers=["tracked_lengths"]))
        return model

    def _taken(self, state: State, rows: Array) -> State:
        """Update the state with samples; rejected samples change nothing."""
        rule, held = self._stream_rule, state.counts["n_held"]
        n = held + len(rows)
        before = set_aside(rule.rule.part_of(state)) if n >= rule.size else State()
        waiting = state.arrays["buffered_rows"][:held]
        if self.track_scores and n >= rule.size and n % rule.size:
            waiting = waiting.copy()  # because the update overwrites the held samples
        try:
            updated: State = named_errors(rule.update, "X")(state, rows)
        except DataError:
            state.arrays |= before.copy().arrays
            state.counts |= {**before.counts, "n_held": held}
            raise
        if before.arrays:
            self._track(before, updated, waiting, rows)
        return updated

    def merge(self, other: StreamedModel) -> Self:
        """Merge with another estimator that was fitted to other samples by `partial_fit`.

        Raises
        ------
        DataError
            If the method has no merge, or the estimators differ in parameters, sample shape or dtype.
        """
        check_is_fitted(self)
        if not isinstance(other, StreamedModel):
            raise DataError(f"other is of type {type(other).__name__}: merge requires another StreamingPCA")
        check_is_fitted(other)
        if self.track_scores:
            raise DataError("merge does not support track_scores=True, which requires a single stream: omit it")
        if self._states is None or other._states is None:
            raise DataError(
                "merge requires the states of two estimators, but fit and load keep a state only with keep_state=True: "
                "use partial_fit, keep_state=True, or one fit of all samples"
            )
        rule = self._stream_rule
        if not rule.mergeable:
            raise DataError(f"{self.method_} does not support merge: {_INSTEAD[allows_gaps(self)]}")
        alike = other._stream_rule == rule and other._stream_dtype == self._stream_dtype
        if not alike or other.sample_shape_ != self.sample_shape_:
            raise DataError("the two estimators differ in parameters, sample shape or dtype: use the same for both")
        self._magnitude = self._magnitude or other._magnitude
        self._find(named_errors(rule.merge, "the other estimator")(self._states[0].copy(), other._states[0]))
        return self

    @RequiresState
    def iter_fit(
        self,
        X: Any,
        *,
        sample_weight: Any = None,
        sample_dim: str | Sequence[str] | None = None,
        key: str | None = None,
        run: Run = Run(),
        max_seconds: float | None = None,
        max_samples: int | None = None,
        every: float = EVERY,
    ) -> Iterator[Progress]:
        """Update the model with the samples of a stack, in order, and yield the progress so far, for example for plots.

        A model that has read some samples of the stack resumes after them. Call `iter_fit` again to resume after a
        budget or an early exit from the loop. Another program can load a model with ``keep_state`` and resume. The
        result is bit-identical to that of a single call. Samples are read as one stream, independent of ``execution``.

        Parameters
        ----------
        X, sample_dim, key, run
            As in `fit`, without checkpoints: save the model to keep it.
        sample_weight
            As in `partial_fit`; to resume, give the same weights. Numbers of samples are sums of weights. With other
            weights than whole numbers, progress comes after whole batches of the rule, ``batch_size``.
        max_seconds : float, optional
            Time limit. The run of samples in progress is completed first.
        max_samples : int, optional
            Largest number of samples to read.
        every : float
            Smallest number of seconds between two results. Their interval is long enough that they take a twentieth of
            the time.

        Yields
        ------
        Progress
            After 16, 64, 256 and 1,024 samples, and then at intervals. The last one is ``finished``, and its model is
            this estimator. Chunks are read whole.

        Raises
        ------
        DataError
            As in `fit`, and for a model without a state. After an exception, the model contains the samples of all
            completed runs.

        Examples
        --------
        >>> from dpca import StreamingPCA
        >>> for found in StreamingPCA(5).iter_fit("stack.zarr", max_seconds=30):
        ...     print(found.n_samples_seen, found.model.components_.shape)
        16 (5, 4320)
        30 (5, 4320)
        """
        check_parameters(self)
        if self.n_passes != 1:
            raise DataError(f"iter_fit makes one pass, but n_passes is {self.n_passes}: omit it, or use fit")
        if self.track_scores:
            raise DataError("track_scores=True requires partial_fit: omit it, and use transform")
        seconds, most = checked_budgets(max_seconds, max_samples)
        pace = Pace(positive_seconds(every, "every"), seconds)
        run = replace(run_of_fit(run, self.memory_budget), checkpoints=None)  # the model itself is the checkpoint
        X, labels = self._samples_to_fit(X, sample_dim, key)
        X = X if sample_weight is None else stream_to_iterate(self, X, sample_weight)
        source = self._stream_for(X, run, labels, key)
        return iterate(self, source, run, pace=pace, max_samples=most)

    def _stream_for(self, X: Any, run: Run, labels: Labels | None, key: str | None) -> Source:
        """Return the samples of a stack as one stream, and initialize a new model for it."""
        fresh = self._states is None
        source = self._stream_of(X, run, labels)
        shape, d = tuple(source.shape[1:]), math.prod(source.shape[1:])
        if fresh:
            method = self._method(d)
            self._begin(method, d, source.dtype, self._seed())
            self.method_, self.sample_shape_ = method_name(method), shape
            self.__dict__.update(self._names_of(labels, key))
        elif (shape, source.dtype) != (self.sample_shape_, self._stream_dtype):
            raise DataError(
                f"{source.name} has samples of {shape} {source.dtype}, but this model was fitted to samples of "
                f"{self.sample_shape_} {self._stream_dtype}: use the same stack again"
            )
        return shuffle(source, self._stream_seed) if self.shuffle else source

    def _stream_of(self, X: Any, run: Run, labels: Labels | None) -> Source:
        """Return the source of samples in the form that the rule reads."""
        return varied_source(self if self._states is None else copy.copy(self), X)

    def _set_state(self, state: State, found: dict[str, Array] | None = None) -> None:
        """Keep a state, and its results if they are known; otherwise `__getattr__` computes them."""
        self._states, self.n_samples_seen_ = [state], state.counts["n_samples"] + state.counts["n_held"]
        self._previous_components = vars(self).get("components_", self._previous_components)
        for name in _FOUND:
            self.__dict__.pop(name, None)
        if found is not None:
            self._set_basis(found, state)

    def __getattr__(self, name: str) -> Any:
        # To compute the components takes longer than an update with a few samples, so `partial_fit` does not do it.
        if name in _FOUND and self._states:
            self._find(self._states[0])
        return object.__getattribute__(self, name)

    def _find(self, state: State) -> None:
        # ``finish`` overwrites the state.
        self._set_basis(named_errors(self._stream_rule.finish, "X")(state.copy()), state)

    def _set_basis(self, found: dict[str, Array], state: State) -> None:
        """Set the fitted attributes from the results of a state."""
        n, before = (
            state.counts["n_samples"] + state.counts["n_held"],
            vars(self).get("components_", self._previous_components),
        )
        named_errors(self._set_results, "X")(
            self._truncated(found), self.method_, self.sample_shape_, n, lambda: self._magnitude, before
        )
        self._states = [state]

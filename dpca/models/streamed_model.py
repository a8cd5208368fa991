"""Going on batch by batch: components of a stream whose state is kept, found when somebody asks for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.engine.boundary import guarded
from dpca.kernels.types import Array
from dpca.models.going_on import WhereStateIsKept, read_states, stated_dtype, stored_arrays
from dpca.models.linear_model import LinearModel
from dpca.models.parameters import are_ordinary, check_parameters, check_states_fit
from dpca.models.store import Kept, StoredModel
from dpca.models.streaming_methods import AUTO, method_name
from dpca.rules.basis import StreamingRule
from dpca.rules.state import State
from dpca.storage.errors import DataError

#: What a fit knows of its own error.
CERTIFICATE = ("captured_bound", "captured_estimate", "captured_estimate_error", "angle_moved", "variance_moved")
_COMPONENTS = ("components", "mean", "explained_variance", "explained_variance_ratio", "singular_values")
# What `partial_fit` leaves to be found.
_FOUND = {f"{name}_" for name in (*_COMPONENTS, "total_variance", "n_components", *CERTIFICATE)}


class StreamedModel(LinearModel):
    """Base of `StreamingPCA`: `partial_fit` and `merge`; the subclass makes the rule and learns what it finds."""

    method_: str

    n_passes: int
    keep_state: bool

    @abstractmethod
    def _rule(self, method: str | StreamingRule, d: int, n: int | None, seed: int) -> Any:
        """Return the rule for n samples of d attributes, or any number of them, in its batches."""

    @abstractmethod
    def _method(self, d: int) -> str | StreamingRule:
        """Return the method for any number of samples of ``d`` attributes."""

    @abstractmethod
    def _settle(
        self, found: dict[str, Array], what: str, sample_shape: tuple[int, ...], n: int, before: Array | None = None
    ) -> None:
        """Learn what was found, unless it is not finite; ``before`` are the components until then, if any."""

    @WhereStateIsKept
    def partial_fit(self, X: Any, y: Any = None, *, sample_dim: str | Sequence[str] | None = None) -> Self:
        """Take in further samples, held in memory.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape and dtype. A batch that is refused changes nothing.
        sample_dim : str or sequence of str, optional
            Of the first ``DataArray``, see `fit`.

        Raises
        ------
        DataError
            For a model that `fit` fitted or `load` read without ``keep_state``; for samples that do not go with those
            before, or with which the rule diverges.

        Notes
        -----
        Costs what the rule's update does. The components are found when they are asked for, from the state so far.
        """
        fresh = self._states is None
        if fresh:
            check_parameters(self)
        X = self._batch(X, sample_dim)
        rows = np.ascontiguousarray(X.reshape(len(X), -1))
        if fresh:
            method = self._method(rows.shape[1])
            self._begin(method, rows.shape[1], rows.dtype, self._seed())
            self.method_, self.sample_shape_ = method_name(method), tuple(X.shape[1:])
        if rows.dtype != self._stream_dtype or tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"this batch has samples of {tuple(X.shape[1:])} {rows.dtype} but the first one had "
                f"{self.sample_shape_} {self._stream_dtype}: all batches must agree"
            )
        state = self._states[0] if self._states else guarded(self._stream_rule.init, "X")(rows.shape[1], rows.dtype)
        if are_ordinary(rows):
            self._go_on(self._taken(state, rows))
        else:
            # Whether the rule bears such values its result tells.
            self._find(guarded(self._stream_rule.update, "X")(state.copy(), rows))
        return self

    def _begin(self, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> None:
        """Fix what all batches share."""
        self._stream_rule, self._stream_dtype, self._stream_seed = self._rule(method, d, None, seed), dtype, seed
        check_states_fit(self._stream_rule, [d], dtype)

    def _check_going_on(self, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> None:
        """Refuse to keep the state of a fit that has none, or one too large."""
        if self.n_passes > 1:
            raise DataError(
                f"keep_state=True keeps what one pass has seen but n_passes is {self.n_passes}: leave one of them out"
            )
        check_states_fit(self._rule(method, d, None, seed), [d], dtype)

    def _go_on_from(self, found: State, method: str | StreamingRule, d: int, dtype: np.dtype[Any], seed: int) -> None:
        """Keep the state of a fit, in which nothing waits."""
        self._begin(method, d, dtype, seed)
        state = self._stream_rule.init(d, dtype)
        for own, others in ((state.arrays, found.arrays), (state.counts, found.counts)):
            own.update({name: others[name] for name in own if name in others})
        self._states = [state]

    def _kept(self) -> Kept:
        kept = super()._kept()
        if not (self.keep_state and self._states):
            return kept
        state, n_held = self._states[0], self._states[0].counts["n_held"]
        facts = {"seed": self._stream_seed, "dtype": str(self._stream_dtype), "n_held": n_held}
        if isinstance(self.n_components, float):
            facts["n_components"] = self.n_components
        filled = State({**state.arrays, "held_rows": state.arrays["held_rows"][:n_held]}, state.counts)
        return replace(kept, arrays={**kept.arrays, **stored_arrays([filled])}, facts={**kept.facts, "state": facts})

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        model = super()._from_store(stored)
        if (facts := stored.facts.get("state")) is not None:
            d, dtype, n_held = model.n_features_in_, stated_dtype(facts), int(facts["n_held"])
            model.n_components = facts.get("n_components", model.n_components)
            # What was chosen there, whatever would be chosen here.
            model._begin(model.method_ if model.method == AUTO else model.method, d, dtype, int(facts["seed"]))
            state = model._stream_rule.init(d, dtype)
            room = state.arrays["held_rows"]
            if not 0 <= n_held <= len(room):
                raise ValueError(f"{n_held} samples wait for a batch of {len(room)}")
            state.arrays["held_rows"] = room[:n_held]
            read_states(stored, [state])
            state.arrays["held_rows"] = room
            if (state.counts["n_held"], state.counts["n_samples"]) != (n_held, stored.n_samples - n_held):
                raise ValueError(f"its state has taken in {state.counts['n_samples']} samples")
            model._states = [state]
        return model

    def _taken(self, state: State, rows: Array) -> State:
        """Take in samples; those that are refused change nothing."""
        rule, held = self._stream_rule, state.counts["n_held"]
        before = rule.rule.part_of(state).copy() if held + len(rows) >= rule.size else State()
        try:
            updated: State = guarded(rule.update, "X")(state, rows)
        except DataError:
            state.arrays |= before.arrays
            state.counts |= {**before.counts, "n_held": held}
            raise
        return updated

    def merge(self, other: StreamedModel) -> Self:
        """Take in all that another estimator has seen through `partial_fit`.

        Raises
        ------
        DataError
            If the method cannot merge, or the two did not see samples of one shape and dtype with the same parameters.
        """
        check_is_fitted(self)
        if not isinstance(other, StreamedModel):
            raise DataError(f"merge takes in another StreamingPCA, not one of type {type(other).__name__}: give one")
        check_is_fitted(other)
        if self._states is None or other._states is None:
            raise DataError(
                "merge joins what partial_fit has seen, and a model that fit() fitted or load() read keeps no state: "
                "give all the data to one fit()"
            )
        rule = self._stream_rule
        if not rule.mergeable:
            raise DataError(f"{self.method_} cannot merge: use method='incremental-svd'")
        alike = other._stream_rule == rule and other._stream_dtype == self._stream_dtype
        if not alike or other.sample_shape_ != self.sample_shape_:
            raise DataError("the two estimators differ in parameters, sample shape or dtype: they must be alike")
        self._find(guarded(rule.merge, "the other estimator")(self._states[0].copy(), other._states[0]))
        return self

    def _go_on(self, state: State) -> None:
        """Keep a state, from which `__getattr__` finds what is asked for."""
        self._states, self.n_samples_seen_ = [state], state.counts["n_samples"] + state.counts["n_held"]
        self._looked_at = vars(self).get("components_", self._looked_at)
        for name in _FOUND:
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        # `partial_fit` leaves the components to whoever asks for them: to find them takes longer than to take in a few
        # samples.
        if name in _FOUND and self._states:
            self._find(self._states[0])
        return object.__getattribute__(self, name)

    def _find(self, state: State) -> None:
        n, before = state.counts["n_samples"] + state.counts["n_held"], vars(self).get("components_", self._looked_at)
        # ``finish`` uses a state up.
        found = self._kept_of(guarded(self._stream_rule.finish, "X")(state.copy()))
        guarded(self._settle, "X")(found, self.method_, self.sample_shape_, n, before)
        self._states = [state]

"""How far the last part of a stream moved the components: a certificate for every rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.dtypes import working_dtype
from dpca.rules.orthonormal import gram
from dpca.rules.state import Array, State

_EARLIER, _COUNT = "earlier_components", "n_earlier"
# What is left of a stream when the components that its end is compared with are taken.
_LAST_PART = 0.1


@dataclass(frozen=True)
class Watched:
    """A rule, and how far its components moved over the last part of the stream.

    Where one state takes all samples in, the components before the first batch (where streams are averaged: the first
    round) that reaches into the last tenth of them are compared with those in the end. Where segments are merged, those
    of all segments before the last merge's second part are: the last part then is up to half of the stream, and its
    angle the larger.

    Parameters
    ----------
    rule : Rule
        Its ``finish`` returns orthonormal ``components`` and their ``explained_variance``.
    n_samples : int
        Length of the stream.

    Results of ``finish``: those of the rule; ``angle_moved`` (), the largest principal angle between the components
    before and after, in radians; ``variance_moved`` (), see `moved`. Both are nan for a stream of a single batch. Costs
    one ``finish`` more, of a copy of the state, and k rows of d.
    """

    rule: Any
    n_samples: int

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return bool(self.rule.mergeable)

    @property
    def random_order(self) -> bool:
        """Whether samples are assumed to come in random order."""
        return bool(self.rule.random_order)

    @property
    def averageable(self) -> bool:
        """Whether streams can be averaged in rounds."""
        return bool(getattr(self.rule, "averageable", False))

    @property
    def summable(self) -> bool:
        """Whether parts of a batch can be summed on different workers."""
        return bool(getattr(self.rule, "summable", False))

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the rule's state, with room for earlier components."""
        state: State = self.rule.init(n_features, dtype)
        state.arrays[_EARLIER] = np.empty((0, n_features), working_dtype(dtype))
        state.counts[_COUNT] = 0
        return state

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features)."""
        own, earlier, n_earlier = self._watch(state, len(batch))
        return _together(self.rule.update(own, batch), earlier, n_earlier)

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return one state for streams that went on from ``before``."""
        if len(states) == 1:
            return states[0]
        n = sum(state.counts["n_samples"] - before.counts["n_samples"] for state in states)
        own, earlier, n_earlier = self._watch(before, n)
        return _together(self.rule.average(own, [_apart(state)[0] for state in states]), earlier, n_earlier)

    def partial(self, state: State, part: Array) -> State:
        """Return the sums over a part of a batch."""
        sums: State = self.rule.partial(_apart(state)[0], part)
        return sums

    def combine(self, state: State, a: State, b: State) -> State:
        """Return the sums over two parts together."""
        sums: State = self.rule.combine(_apart(state)[0], a, b)
        return sums

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch."""
        own, earlier, n_earlier = self._watch(state, sums.counts["n_samples"])
        return _together(self.rule.apply(own, sums), earlier, n_earlier)

    def _watch(self, state: State, n_coming: int) -> tuple[State, Array, int]:
        """Take the state apart; keep its components if the samples that come reach into the last part."""
        own, earlier, n_earlier = _apart(state)
        n = own.counts["n_samples"]
        if n and not n_earlier and n + n_coming > (1 - _LAST_PART) * self.n_samples:
            earlier, n_earlier = self._components(own), n
        return own, earlier, n_earlier

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams together."""
        own, earlier, n_earlier = _apart(a)
        second, _, _ = _apart(State(dict(b.arrays), dict(b.counts)))
        if own.counts["n_samples"] and second.counts["n_samples"]:
            earlier, n_earlier = self._components(own), own.counts["n_samples"]
        return _together(self.rule.merge(own, second), earlier, n_earlier)

    def finish(self, state: State) -> dict[str, Array]:
        """Return the rule's result, and how far the components moved."""
        own, earlier, n_earlier = _apart(state)
        result: dict[str, Array] = self.rule.finish(own)
        angle, share = math.nan, math.nan
        if n_earlier:
            angle, share = moved(earlier, result["components"], result["explained_variance"])
        return {**result, "angle_moved": np.asarray(angle), "variance_moved": np.asarray(share)}

    def _components(self, own: State) -> Array:
        # ``finish`` uses a state up.
        components: Array = self.rule.finish(own.copy())["components"]
        return components

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return int(self.rule.batch_rows(dtype))

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        rows = int(min(self.rule.n_components, n_features))
        earlier = rows * n_features * working_dtype(dtype).itemsize
        return int(self.rule.state_bytes(n_features, dtype)) + earlier

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: the rule's, and the copy of its state that is finished."""
        finished = int(self.rule.state_bytes(n_features, dtype)) + int(self.rule.result_bytes(n_features, dtype))
        return int(self.rule.work_bytes(n_rows, n_features, dtype)) + finished

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return int(self.rule.result_bytes(n_features, dtype)) + 16


def moved(before: Array, after: Array, variances: Array) -> tuple[float, float]:
    """Return how far orthonormal rows ``after`` (k, d) are from those ``before`` (m, d).

    Parameters
    ----------
    variances : array (k,)
        Of the rows after.

    Returns
    -------
    angle : float
        The largest principal angle between the two subspaces, in radians (Bjorck & Golub 1973); of min(k, m) angles.
    share : float
        Share of the variance of the rows after that lies outside the rows before: sum lambda_i |(I - P) v_i|^2 / sum
        lambda_i with P the projection onto the rows before. Unlike the angle it is small where components merely turn
        among others of nearly the same, small variance. 0 without any variance.
    """
    few, many = (before, after) if len(before) <= len(after) else (after, before)
    angle = math.asin(math.sqrt(min(1.0, float(np.linalg.eigvalsh(_outside(few, many))[-1].clip(0)))))
    total = float(variances.sum())
    left = np.diagonal(_outside(after, before)).clip(0, 1)
    return angle, float(left @ variances) / total if total > 0 else 0.0


def _outside(rows: Array, others: Array) -> Array:
    """Return R R^T for what is left of rows outside the span of others, float64."""
    # By products in float64 and the inverse of the others' own: rows orthonormal to float32 would leave 1e-7, an angle
    # of 3e-4.
    cross = gram(rows, others)
    left: Array = gram(rows) - cross @ np.linalg.pinv(gram(others), hermitian=True) @ cross.T
    return left


def _apart(state: State) -> tuple[State, Array, int]:
    """Return the rule's own state, sharing its arrays, and what is kept beside it."""
    arrays, counts = dict(state.arrays), dict(state.counts)
    earlier, n_earlier = arrays.pop(_EARLIER), counts.pop(_COUNT)
    return State(arrays, counts), earlier, n_earlier


def _together(own: State, earlier: Array, n_earlier: int) -> State:
    own.arrays[_EARLIER], own.counts[_COUNT] = earlier, n_earlier
    return own

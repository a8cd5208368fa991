"""Measures how far the last part of a stream moved the components: a certificate for every rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base.orthonormal import gram
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import ALL, AttributeBlocks, State, StateLayout

_EARLIER, _COUNT = "earlier_components", "n_earlier"
# The last part of a stream, as a share: the final components are compared with those before it.
_LAST_PART = 0.1


@dataclass(frozen=True)
class Watched(Wrapper):
    """A rule with a measure of the motion of its components over the last part of the stream.

    The final components are compared with earlier ones. If one state processes all samples, these are the components
    before the first batch that contains samples of the last tenth. If streams are averaged, they are those before the
    first such round. If segments are merged, they are those of the first state of the last merge. The last part is then
    up to half of the stream, and the angle is larger.

    Parameters
    ----------
    rule : StreamingRule
        Its ``finish`` returns orthonormal ``components`` and their ``explained_variance``.
    n_samples : int
        Length of the stream.

    Results of ``finish``: those of the rule; ``angle_moved`` (), the largest principal angle between the earlier and
    the final components, in radians; ``variance_moved`` (), see `moved`. Both are nan for a stream of a single batch,
    and if its earlier part had no variance. Costs k rows of d, and what the rule needs to compute them from a state
    that it does not change.
    """

    n_samples: int
    counts = (_COUNT,)
    by_attribute = (_EARLIER,)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {_EARLIER: ((self.rule.rank(n_features), n_features), working_dtype(dtype))}

    def init(self, n_features: int, dtype: DTypeLike, blocks: AttributeBlocks = ALL) -> State:
        """Return the state of the rule, with memory for earlier components."""
        state = super().init(n_features, dtype, blocks)
        state.arrays[_EARLIER] = state.arrays[_EARLIER][:0]
        return state

    def update(self, state: State, batch: Array) -> State:
        """Process a batch (n_samples, n_features)."""
        self._watch(state, len(batch))
        return self.rule.update(state, batch)

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return one state for streams that started from ``before``."""
        if len(states) == 1:
            return states[0]
        before = State(dict(before.arrays), dict(before.counts))
        self._watch(before, sum(state.counts["n_samples"] - before.counts["n_samples"] for state in states))
        return super().average(before, states)

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch."""
        self._watch(state, sums.counts["n_samples"])
        return self.rule.apply(state, sums)

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams."""
        if a.counts["n_samples"] and b.counts["n_samples"]:
            self._keep_components(a)
        return super().merge(a, b)

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result of the rule, and how far the components moved."""
        result: dict[str, Array] = self.rule.finish(state)
        angle, share, before = math.nan, math.nan, state.arrays[_EARLIER]
        if len(before):
            angle, share = moved(before, result["components"], result["explained_variance"], state.blocks)
        return {**result, "angle_moved": np.asarray(angle), "variance_moved": np.asarray(share)}

    def _watch(self, state: State, n_coming: int) -> None:
        """Store the components if the next samples reach into the last part."""
        n = state.counts["n_samples"]
        if n and not state.counts[_COUNT] and n + n_coming > (1 - _LAST_PART) * self.n_samples:
            self._keep_components(state)

    def _keep_components(self, state: State) -> None:
        state.arrays[_EARLIER] = self.rule.components_of(self.rule.part_of(state))
        state.counts[_COUNT] = state.counts["n_samples"]

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of the rule, and of its earlier components while they are computed."""
        earlier = self.rule.components_bytes(n_features, dtype)
        return int(self.rule.work_bytes(n_rows, n_features, dtype) + earlier)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return int(self.rule.result_bytes(n_features, dtype)) + 16


def moved(before: Array, after: Array, variances: Array, over: AttributeBlocks = ALL) -> tuple[float, float]:
    """Return the distance of orthonormal rows ``after`` (k, d) from rows ``before`` (m, d).

    Parameters
    ----------
    variances : array (k,)
        Variances of the rows ``after``.
    over : AttributeBlocks
        The blocks of attributes of these rows.

    Returns
    -------
    angle : float
        The largest of the min(k, m) principal angles between the two subspaces, in radians (Bjorck & Golub 1973).
    share : float
        Share of the variance of the rows ``after`` outside of the span of ``before``: sum lambda_i |(I - P) v_i|^2 /
        sum lambda_i, with the projection P onto this span. Unlike the angle, it is small if components only mix with
        others of similar, small variance. 0 without any variance.
    """
    cross, own, others = gram(after, before, over), gram(after, over=over), gram(before, over=over)
    # Uses products in float64 and the inverse of those of the others. Assuming orthonormal rows in float32 would leave
    # 1e-7, an angle of 3e-4.
    left = own - cross @ np.linalg.pinv(others, hermitian=True) @ cross.T
    few = left if len(after) < len(before) else others - cross.T @ np.linalg.pinv(own, hermitian=True) @ cross
    angle = math.asin(math.sqrt(min(1.0, float(np.linalg.eigvalsh(few)[-1].clip(0)))))
    total = float(variances.sum())
    share = float(left.diagonal().clip(0, 1) @ variances) / total if total > 0 else 0.0
    return angle, share

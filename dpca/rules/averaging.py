"""What rules share whose streams part from one state, go their own ways for a round, and are averaged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpca.rules import centering
from dpca.rules.basis import BasisRule
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.state import State


@dataclass(frozen=True)
class AveragedRule(BasisRule):
    """A rule whose bases may be averaged after rounds of samples (Amid & Warmuth 2020, section "Distributed Setting").

    Parameters and results as in :class:`~dpca.rules.basis.BasisRule`.
    """

    averageable: ClassVar[bool] = True

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return one state for streams that went on from ``before`` (Amid & Warmuth 2020, equation 18).

        Bases, and what is known of their variances, are averaged with the samples that each stream took in since as
        weights; where the rule keeps orthonormal rows, the average is orthonormalized, as in the source. Mean, total
        variance and the number of samples are those of all samples, each counted once. The numbers of updates and of
        projections, on which step sizes and gains depend, are those of the longest stream: streams of a round share
        their step sizes, as in the source. A single stream stays as it is to the last bit.

        Costs O(m k d) for m states; changes neither them nor ``before``.
        """
        if len(states) == 1:
            return states[0]
        weights = [state.counts["n_samples"] - before.counts["n_samples"] for state in states]
        if not sum(weights):
            return before.copy()
        averaged = states[0].copy()
        for name, array in averaged.arrays.items():
            for state, weight in zip(states[1:], weights[1:], strict=True):
                # As differences from the first, so that equal states stay equal to the last bit.
                array += (state.arrays[name] - states[0].arrays[name]) * array.dtype.type(weight / sum(weights))
        averaged.arrays["mean"], averaged.arrays["scatter"] = centering.joined(before, states)
        averaged.counts["n_samples"] = before.counts["n_samples"] + sum(weights)
        for name in ("n_updates", "n_projected"):
            averaged.counts[name] = max(state.counts[name] for state in states)
        self._normalize(averaged)
        return averaged

    def _normalize(self, state: State) -> None:
        """Give an average of bases the form that the rule keeps its basis in."""
        state.arrays["components"] = orthonormalize(state.arrays["components"])

"""Scores of a stream, rotated with the basis as it changes: each sample is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State

#: Names of the arrays of tracked scores in a store, with the names of their axes.
TRACKED = {
    "tracked_scores": ("tracked_score_value",),
    "tracked_turns": ("tracked_part", "direction", "new_direction"),
    "tracked_shifts": ("tracked_part", "direction"),
    "tracked_lengths": ("tracked_part",),
}

# Bytes of one block of centered samples.
_BLOCK_BYTES = 2**25


class _TrackedPart(NamedTuple):
    """Scores of successive samples, and the map to the scores of the next part.

    Attributes
    ----------
    scores : array (n, q)
        Scores along the q directions of the basis at the time.
    turn : array (q, q)
        Map from these directions to those of the next part, or of the state.
    shift : array (q,)
        Change of the scores by the change of the mean.
    """

    scores: Array
    turn: Array
    shift: Array


@dataclass
class TrackedScores:
    """Scores of all samples in the state of a rule, along all directions that it keeps.

    When the basis V of q directions becomes V', scores y become y V V'^T plus the change of the mean. The part of a
    sample outside of V is lost, also for directions that the basis gains later. Therefore all q directions are tracked,
    which are more than the components. Parts of the stream are kept with their maps, and two parts are joined when the
    later one is as long as the earlier one. There are log2 of the number of batches parts, and each join costs 2 q^2
    operations per sample.
    """

    parts: list[_TrackedPart] = field(default_factory=list)

    def taken(self, before: State, after: State, rows: Sequence[Array]) -> None:
        """Update the scores from one state to the next, which contains these rows (n, d) in pieces."""
        if self.parts:
            self.parts[-1] = _then(self.parts[-1], *_turn(before, after.arrays["basis"], after.arrays["mean"]))
        basis, mean = after.arrays["basis"], after.arrays["mean"]
        scores = np.concatenate([_scores(piece, mean, basis) for piece in rows])
        q = len(basis)
        self.parts.append(_TrackedPart(scores, np.eye(q, dtype=basis.dtype), np.zeros(q, basis.dtype)))
        while len(self.parts) > 1 and len(self.parts[-1].scores) >= len(self.parts[-2].scores):
            last, earlier = self.parts.pop(), self.parts.pop()
            if self.parts:
                self.parts[-1] = _then(self.parts[-1], earlier.turn, earlier.shift)
            joined = np.concatenate([earlier.scores @ earlier.turn + earlier.shift, last.scores])
            self.parts.append(last._replace(scores=joined))

    def by(self, state: State, components: Array, mean: Array, waiting: Array) -> Array:
        """Return the scores (n, k) of all samples along components (k, d) about a mean (d,).

        ``waiting`` are rows (m, d) that wait for a batch and are not in the state.
        """
        turn, shift = _turn(state, components, mean)
        found = [_scores(waiting, mean, components)]
        for part in reversed(self.parts):
            turn, shift = part.turn @ turn, part.shift @ turn + shift
            found.append(part.scores @ turn + shift)
        return np.concatenate(found[::-1])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays for a store; see `TRACKED`."""
        if not self.parts:
            return {}
        values = [np.concatenate([part.scores for part in self.parts]).ravel()]
        values += [np.stack([getattr(part, name) for part in self.parts]) for name in ("turn", "shift")]
        return dict(zip(TRACKED, [*values, np.array([len(part.scores) for part in self.parts])], strict=True))

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> TrackedScores:
        """Return the tracked scores from the result of `arrays`."""
        scores, turns, shifts, lengths = (arrays[name] for name in TRACKED)
        pieces = np.split(scores.reshape(-1, turns.shape[1]), np.cumsum(lengths)[:-1])
        return cls([_TrackedPart(*part) for part in zip(pieces, turns, shifts, strict=True)])


def _then(part: _TrackedPart, turn: Array, shift: Array) -> _TrackedPart:
    return part._replace(turn=part.turn @ turn, shift=part.shift @ turn + shift)


def _turn(state: State, rows: Array, mean: Array) -> tuple[Array, Array]:
    """Return the map and shift from scores along a state's basis to those along rows (k, d) about another mean."""
    basis = state.arrays["basis"]
    moved = (state.arrays["mean"] - mean).astype(rows.dtype)
    return basis @ rows.T, rows @ moved


def _scores(samples: Array, mean: Array, rows: Array) -> Array:
    scores, shift = np.empty((len(samples), len(rows)), rows.dtype), mean.astype(rows.dtype)
    step = max(1, _BLOCK_BYTES // shift.nbytes)
    for start in range(0, len(samples), step):
        centered = np.subtract(samples[start : start + step], shift, dtype=rows.dtype)
        np.matmul(centered, rows.T, out=scores[start : start + step])
    return scores

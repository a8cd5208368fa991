"""Scores of a stream that is still coming in, turned along with its basis: no sample is looked at twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State

#: Names under which a store keeps what is tracked, with their axes.
TRACKED = {
    "tracked_scores": ("tracked_score_value",),
    "tracked_turns": ("tracked_part", "direction", "new_direction"),
    "tracked_shifts": ("tracked_part", "direction"),
    "tracked_lengths": ("tracked_part",),
}

# Samples that are centered at once.
_BLOCK_BYTES = 2**25


class _TrackedPart(NamedTuple):
    """Successive samples, and what the basis became after them.

    Attributes
    ----------
    scores : array (n, q)
        In the q directions of the basis at the time.
    turn : array (q, q)
        From these to the directions of the next part, or of the state.
    shift : array (q,)
        What the mean that moved adds.
    """

    scores: Array
    turn: Array
    shift: Array


@dataclass
class TrackedScores:
    """Scores of all samples that a rule has taken in, in all directions that it keeps.

    When the basis V of q directions becomes V', scores y become y V V'^T, and what the mean moved by is added: a
    sample loses what it had outside of V, and directions that come in later do not know it. So all q directions are
    tracked, more than the components. Parts of the stream wait with their turns, and are joined when a later one is as
    long: log2 of the number of batches are left, and a sample costs 2 q^2 operations for each.
    """

    parts: list[_TrackedPart] = field(default_factory=list)

    def taken(self, before: State, after: State, rows: Sequence[Array]) -> None:
        """Go on from a state to one that has taken in these rows (n, d), in pieces."""
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
        """Return the scores (n, k) of all samples by components (k, d) about a mean (d,).

        ``waiting`` are rows (m, d) that the state has not taken in yet.
        """
        turn, shift = _turn(state, components, mean)
        found = [_scores(waiting, mean, components)]
        for part in reversed(self.parts):
            turn, shift = part.turn @ turn, part.shift @ turn + shift
            found.append(part.scores @ turn + shift)
        return np.concatenate(found[::-1])

    def arrays(self) -> dict[str, Array]:
        """Return what a store keeps; see `TRACKED`."""
        if not self.parts:
            return {}
        values = [np.concatenate([part.scores for part in self.parts]).ravel()]
        values += [np.stack([getattr(part, name) for part in self.parts]) for name in ("turn", "shift")]
        return dict(zip(TRACKED, [*values, np.array([len(part.scores) for part in self.parts])], strict=True))

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> TrackedScores:
        """Return what `arrays` returned."""
        scores, turns, shifts, lengths = (arrays[name] for name in TRACKED)
        pieces = np.split(scores.reshape(-1, turns.shape[1]), np.cumsum(lengths)[:-1])
        return cls([_TrackedPart(*part) for part in zip(pieces, turns, shifts, strict=True)])


def _then(part: _TrackedPart, turn: Array, shift: Array) -> _TrackedPart:
    return part._replace(turn=part.turn @ turn, shift=part.shift @ turn + shift)


def _turn(state: State, rows: Array, mean: Array) -> tuple[Array, Array]:
    """Return what turns scores by a state's basis into those by other rows (k, d), about another mean."""
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

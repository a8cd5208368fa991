"""Statistics of attributes with missing values: means by groups of samples, trends, variances, and gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

# Sample numbers are two columns of floating-point numbers, which hold integers up to 2^24 exactly.
_PART = 2**20
#: Number of these columns.
NUMBERS = 2
_BLOCK_ROWS = 64


@dataclass(frozen=True, eq=False)
class Survey(Rule):
    """Regress every attribute on groups of samples and a trend, and count missing values, in one pass.

    A batch (m, d + 2) holds samples with NaN for missing values, and their numbers, see `numbered`. The samples are
    values minus a constant near them. All sums are in float64. States can be merged. Runs of missing values continue
    from the first state to the second. Attributes do not depend on each other until `survey_of` computes the
    regression from the results, so that a fold may read them by blocks.

    Parameters
    ----------
    groups : array (n,), integer
        Group of each sample, from 0 on.
    trend : array (n,), float64, or None
        Time of each sample, about -1 to 1.
    weights : array (n,), float64, optional
        Weight of each sample in the sums; by default 1.

    Notes
    -----
    Results of ``finish``, float64: ``sums`` (n_groups, d) of the values of each group; ``squares`` (d,); with a trend,
    ``along`` (d,) of values times times. Integers: ``count`` (d,), the number of existing values; ``run`` (d,), the
    longest run of missing values; ``empty`` (n,), whether a sample has no value. Costs O(n d) time; state
    (n_groups + 6) d + n numbers, or d more with a trend.
    """

    groups: Array
    trend: Array | None
    weights: Array | None = None

    mergeable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        d = n_features - NUMBERS
        whole = dict.fromkeys(("count", "first", "last", "run"), ((d,), np.int64))
        sums = {"sums": ((self._n_groups, d), float), "squares": ((d,), float)}
        sums |= {} if self.trend is None else {"along": ((d,), float)}
        return {**whole, **sums, "empty": ((len(self.groups),), np.int8)}

    @property
    def _n_groups(self) -> int:
        return int(self.groups.max()) + 1

    def _take(self, state: State, batch: Array) -> None:
        arrays = state.arrays
        for rows in (batch[few] for few in blocks(len(batch), _BLOCK_ROWS)):
            numbers = (rows[:, -2] * _PART + rows[:, -1]).astype(np.int64)
            x = rows[:, :-NUMBERS].copy()
            missing = np.isnan(x)
            some = missing.any(axis=0)
            if some.any():
                x[missing] = 0
                arrays["empty"][numbers] += missing.all(axis=1)
                self._count_runs(state, missing, np.flatnonzero(some))
            arrays["last"][~some] = 0
            arrays["count"] += len(x) - missing.sum(axis=0)
            groups, y = self.groups[numbers], x
            if self.weights is not None:
                y = x * self.weights[numbers, None]
            for group in np.unique(groups):
                arrays["sums"][group] += y[groups == group].sum(axis=0, dtype=np.float64)
            arrays["squares"] += np.einsum("ij,ij->j", x, y, dtype=np.float64)
            if self.trend is not None:
                arrays["along"] += self.trend[numbers] @ y
            state.counts["n_samples"] += len(x)

    def _count_runs(self, state: State, missing: Array, columns: Array) -> None:
        first, last, run = (state.arrays[name][columns] for name in ("first", "last", "run"))
        for number, row in enumerate(missing[:, columns], state.counts["n_samples"]):
            last = (last + 1) * row
            np.maximum(run, last, out=run)
            first += (first == number) & row
        for name, values in (("first", first), ("last", last), ("run", run)):
            state.arrays[name][columns] = values

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams, ``b`` after ``a``."""
        ours, theirs, n_a, n_b = a.arrays, b.arrays, a.counts["n_samples"], b.counts["n_samples"]
        joined = {
            "run": np.maximum(np.maximum(ours["run"], theirs["run"]), ours["last"] + theirs["first"]),
            "first": np.where(ours["first"] == n_a, n_a + theirs["first"], ours["first"]),
            "last": np.where(theirs["last"] == n_b, n_b + ours["last"], theirs["last"]),
        }
        merged = super().merge(a, b)
        merged.arrays.update(joined)
        return merged

    def _finish(self, state: State) -> dict[str, Array]:
        found = {name: values for name, values in state.arrays.items() if name not in ("first", "last")}
        return found | {name: found[name].astype(np.int32) for name in ("count", "run")}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: a block of samples, its mask, and sums; and of groups and trend."""
        given = (self.trend is not None) + (self.weights is not None)
        own = len(self.groups) * (10 + self.groups.itemsize * 2 + 16 * given)
        each = 13 if self.weights is None else 21
        return (each * min(n_rows, _BLOCK_ROWS) + 64) * n_features + own


def survey_of(
    found: dict[str, Array],
    groups: Array,
    trend: Array | None,
    there: Array,
    shift: Array,
    weights: Array | None = None,
) -> dict[str, Array]:
    """Return the regression of attributes on groups and a trend from the sums of `Survey`.

    The model is x = c_g + b t, with the group g of a sample and its time t. Least squares have a closed form. Group g
    has n_g samples, and the sums S_g of x and T_g of t. Then b = (sum x t - sum_g S_g T_g / n_g) / (sum t^2 -
    sum_g T_g^2 / n_g) and c_g = (S_g - b T_g) / n_g. All sums are weighted; n_g is the sum of the weights.

    Parameters
    ----------
    found : dict
        Result of `Survey` for d attributes. Its ``sums`` may be overwritten.
    groups, trend : arrays (n,)
        Of the rule.
    there : array (n,), bool
        Whether a sample has any value. Samples without are ignored.
    shift : array (d,), float64
        The constants that were subtracted from the values.
    weights : array (n,), optional
        Of the rule.

    Returns
    -------
    dict
        ``level`` (n_groups, d), ``slope`` (d,) and the residual ``variance`` (d,) (divisor n, or the sum of the
        weights), float64. They are exact for attributes without missing values. For all other attributes, ``level`` is
        the mean of the existing values over all groups (with weights, about that), and ``slope`` is 0.
    """
    n, used, n_groups = int(there.sum()), groups[there], len(found["sums"])
    w = None if weights is None else weights[there]
    total = max(n, 1) if w is None else float(w.sum()) or 1.0
    own = np.bincount(used, w, n_groups)[:, None]
    own[own == 0] = 1
    sums, squares = found["sums"], found["squares"]
    slope = np.zeros(len(shift))
    within = squares - (sums**2 / own).sum(axis=0)
    if not np.isfinite(within).all():
        raise ValueError("a variance exceeds the range of float64: divide all values by a constant first")
    level = sums / own
    if trend is not None:
        t = trend[there]
        weighted = t if w is None else w * t
        times, square = np.bincount(used, weighted, n_groups)[:, None], float(weighted @ t)
        spread = square - float((times**2 / own).sum())
        # If times do not vary within groups, the groups already explain the trend.
        if spread > 1e-12 * square:
            slope = (found["along"] - (sums * times / own).sum(axis=0)) / spread
        level -= slope * times / own
        within -= slope**2 * spread
    gappy = found["count"] < n
    level[:, gappy] = sums[:, gappy].sum(axis=0) * (max(n, 1) / total) / np.maximum(found["count"][gappy], 1)
    slope[gappy] = 0
    level += shift
    return {"level": level, "slope": slope, "variance": np.maximum(within, 0) / total}


def numbered(values: Array, first: int, out: Array) -> None:
    """Write samples (m, d) into the first columns of ``out``, and their numbers, from ``first`` on, into the last 2."""
    out[:, : values.shape[1]] = values
    numbers = np.arange(first, first + len(values))
    out[:, -2], out[:, -1] = numbers // _PART, numbers % _PART

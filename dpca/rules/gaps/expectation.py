"""One pass of expectation-maximization for components of samples with missing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.gaps import (
    BLOCK_ROWS,
    LEAST_NOISE,
    LowRank,
    ScoreDistribution,
    bits_at,
    centered_rows,
    expected_scores,
    is_present,
    paired,
    unpaired,
)
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

# Bytes of the equations of the attributes that are solved together.
_SOLVED_BYTES = 2**24
# Most entries of a sample that are held out, and most that are hashed.
_MOST_HELD, _HASHED = 64, 512


@dataclass(frozen=True, eq=False)
class GapEM(Rule):
    """One step of expectation-maximization for probabilistic PCA with missing values (Roweis 1998; Ilin & Raiko 2010).

    The expectation of the scores y of a sample, given the values that are there, and their covariance S follow from the
    given model. Each attribute is then regressed on (y, 1) over the samples in which it is there. Sums over samples are
    all that is needed: states can be merged, and the order of samples does not matter. A prior on the loadings, as weak
    as the uncertainty of one complete sample, keeps the equations of attributes with few values regular. A stronger
    one, from the loadings of all attributes, would discard weak components. The covariance of the scores is freed and
    absorbed by the components (parameter expansion: Liu, Rubin & Wu 1998), so that variances are right after every
    step. The covariance of the model is positive by construction.

    Parameters
    ----------
    n_components : int
    models : sequence of LowRank
        The given model of each part of a partition. Only `of_part` uses it. Empty for plans.
    missing : number, optional
        Marks a missing value, in addition to NaN.
    share : float
        About this share of the entries is left out of the sums. Their squared error under the given model is measured.
        Which ones they are depends on the values of the sample and the seed only: it is the same for any order of
        samples.
    seed : int

    Results of ``finish``: ``components`` (k, d), ``variances`` (k,), ``mean`` (d,) and ``noise`` (), the next model,
    see `LowRank`, float64; ``error`` and ``tested`` (), the sum of squares and the number of entries held out. Costs n
    d k (k + 4) operations in two matrix products; state (k + 1) (k + 4) d / 2 numbers and the given model.
    """

    n_components: int
    models: Sequence[LowRank] = ()
    missing: Any = None
    share: float = 0.0
    seed: int = 0
    part: int = field(default=0, compare=False)

    mergeable = True
    least_samples = 0  # a cell on land has none
    #: Arrays of a state that belong to the given model.
    given = ("components", "variances", "mean", "noise")

    def of_part(self, part: int) -> GapEM:
        """Return the rule of a part, which starts from its own model."""
        model = self.models[part]
        return GapEM(len(model.variances), (model,), self.missing, self.share, self.seed, part)

    def _k(self, n_features: int) -> int:
        return min(self.n_components, n_features)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k = self._k(n_features)
        pairs = (k + 1) * (k + 2) // 2
        return {
            "components": ((k, n_features), working_dtype(dtype)),
            "variances": ((k,), float),
            "mean": ((n_features,), float),
            "noise": ((), float),
            "moments": ((pairs, n_features), float),
            "products": ((k + 1, n_features), float),
            "complete": ((pairs,), float),
            "inner": ((pairs,), float),
            **dict.fromkeys(("squares", "error", "tested"), ((), float)),
        }

    def _start(self, state: State, dtype: DTypeLike) -> None:
        (model,) = self.models
        for name in self.given:
            state.arrays[name][...] = getattr(model, name)

    def merge(self, a: State, b: State) -> State:
        """Return the sums of both streams; both have the same given model."""
        kept = {name: a.arrays[name] for name in self.given}
        for name in a.arrays.keys() - kept.keys():
            a.arrays[name] += b.arrays[name]
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def _take(self, state: State, batch: Array) -> None:
        model = given_model(state.arrays)
        pairs = paired(model.components)
        for few in blocks(len(batch), BLOCK_ROWS):
            self._take_rows(state, model, pairs, batch[few])

    def _take_rows(self, state: State, model: LowRank, pairs: Array, rows: Array) -> None:
        arrays = state.arrays
        here = is_present(rows, self.missing)
        if (used := here.any(axis=1)).sum() < len(rows):
            rows, here = rows[used], here[used]
        sample, attribute = held_out(rows, here, self.share, self.seed)
        here[sample, attribute] = False
        found = add_expectations(arrays, model, pairs, rows, here)
        expected = np.einsum("ij,ji->i", found.scores[sample], model.components[:, attribute], dtype=np.float64)
        error = rows[sample, attribute] - model.mean[attribute] - expected
        arrays["error"] += error @ error
        arrays["tested"] += len(error)
        state.counts["n_samples"] += len(rows)

    def _finish(self, state: State) -> dict[str, Array]:
        arrays, n = state.arrays, state.counts["n_samples"]
        if n == 0:
            return {name: arrays[name] for name in (*self.given, "error", "tested")}
        model = given_model(arrays)
        loadings, shift, noise = regressed(arrays, model.ridge)
        found = standardized(loadings, model.mean + shift, arrays["inner"] / n, noise)
        return {**found._asdict(), "noise": np.asarray(noise), "error": arrays["error"], "tested": arrays["tested"]}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in an update and in ``finish``."""
        k, n, size = self._k(n_features), min(n_rows, BLOCK_ROWS), working_dtype(dtype).itemsize
        pairs = (k + 1) * (k + 2) // 2
        rows = n * (n_features * (4 * size + 12) + 8 * (6 * (k + 1) ** 2))
        update = rows + 2 * pairs * n_features * size + pairs * n_features * 8
        solved = 4 * min(max(_SOLVED_BYTES, 8 * (k + 1) ** 2), 8 * n_features * (k + 1) ** 2)
        return max(update, solved + 8 * 5 * k * n_features)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * (self._k(n_features) * (n_features + 1) + n_features + 3)


def given_model(arrays: Mapping[str, Array]) -> LowRank:
    """Return the given model of the arrays of a state."""
    components, variances, mean, noise = (arrays[name] for name in GapEM.given)
    return LowRank(components, variances, mean, float(noise))


def add_expectations(
    arrays: Mapping[str, Array], model: LowRank, pairs: Array, rows: Array, here: Array, turn: Array | None = None
) -> ScoreDistribution:
    """Add the expectations of rows (n, d) of which the values ``here`` are known to the sums of a state.

    ``pairs`` are those of the components. ``turn`` (k, k), orthogonal, converts scores in units of their deviations to
    those of the sums. Returns the distribution of the scores.
    """
    dtype, k = model.components.dtype, len(model.variances)
    x = centered_rows(rows, here, model.mean, dtype)
    found = expected_scores(x, here, model.components, pairs, model.ridge)
    arrays["squares"][...] += np.einsum("ij,ij->", x, x, dtype=np.float64)
    scores = found.scores.T / model.deviations[:, None]
    first, second = np.triu_indices(k)
    covariance = found.inverse * (model.noise / (model.deviations[first] * model.deviations[second]))[:, None]
    if turn is not None:
        scores, covariance = turn @ scores, turned_pairs(turn) @ covariance
    scaled = np.concatenate([scores, np.ones((1, len(x)))])
    # Second moments of (y, 1) in units of the deviations, for which single precision suffices.
    first, second = np.triu_indices(k + 1)
    moments = scaled[first]
    moments *= scaled[second]
    moments[second < k] += covariance
    total, some = moments.sum(axis=1), moments if len(found.gaps) == len(x) else moments[:, found.gaps]
    arrays["complete"][...] += total - some.sum(axis=1)
    arrays["inner"][...] += total
    arrays["moments"][...] += some.astype(dtype) @ found.present
    arrays["products"][...] += scaled.astype(dtype) @ x
    return found


def turned_pairs(turn: Array) -> Array:
    """Return the matrix that turns the upper triangle of a symmetric matrix C into that of turn C turn^T."""
    first, second = np.triu_indices(len(turn))
    one, other = turn[np.ix_(first, first)], turn[np.ix_(second, second)]
    turned: Array = one * other + turn[np.ix_(first, second)] * turn[np.ix_(second, first)]
    turned[:, first == second] /= 2
    return turned


def regressed(arrays: Mapping[str, Array], ridge: Array) -> tuple[Array, Array, float]:
    """Return the regression of each attribute on (y, 1) from the sums of a state.

    ``ridge`` (k,) is the prior on the loadings. Returns the loadings (k, d), the shift of the mean (d,), and the
    variance of the noise. An attribute without values has no loadings and no shift.
    """
    k, d = arrays["components"].shape
    some = value_counts(arrays) > 0
    loadings, shift, explained, count = np.empty((k, d)), np.empty(d), 0.0, 0.0
    prior = np.append(ridge, 0.0)
    for few in blocks(d, max(1, _SOLVED_BYTES // (8 * (k + 1) ** 2))):
        moments = unpaired(arrays["moments"][:, few].T + arrays["complete"], k + 1)
        right, own = arrays["products"][:, few].T, moments[:, k, k].copy()
        moments[~some[few], k, k] = 1
        moments[:, np.arange(k + 1), np.arange(k + 1)] += prior
        found = np.linalg.solve(moments, right[..., None])[..., 0]
        explained += float(np.einsum("ij,ij->", found, right + prior * found))
        count += float(own.sum())
        loadings[:, few], shift[few] = found[:, :k].T, found[:, k]
    squares = float(arrays["squares"])
    # Below this, noise is rounding error of the sums.
    least = np.finfo(arrays["components"].dtype).eps * squares / max(count, 1)
    return loadings, shift, max((squares - explained) / max(count, 1), least, LEAST_NOISE)


def value_counts(arrays: Mapping[str, Array]) -> Array:
    """Return how many values of each attribute (d,) the sums of a state have."""
    counts: Array = arrays["moments"][-1] + arrays["complete"][-1]
    return counts


def standardized(loadings: Array, mean: Array, second: Array, noise: float) -> LowRank:
    """Return the model with independent scores of given second moments of (y, 1), as pairs, per sample."""
    k = len(loadings)
    inner = unpaired(second, k + 1)
    center = inner[:k, k]
    spread = inner[:k, :k] - np.outer(center, center)
    mean = mean + center @ loadings
    _, deviations, components = np.linalg.svd(np.linalg.cholesky(spread).T @ loadings, full_matrices=False)
    return LowRank(linalg.fix_signs(components), deviations**2, mean, noise)


def held_out(rows: Array, here: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Return the samples and attributes of entries to hold out, about a ``share``, at most 64 of a sample.

    They are there, and follow from a hash of values of the sample. One value of each sample stays.
    """
    d = rows.shape[1]
    if not share:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    count = max(1, min(_MOST_HELD, int(share * d)))
    factors = np.random.default_rng(seed).integers(2**63, size=(2, max(_HASHED, count)), dtype=np.uint64) * 2 + 1
    columns = slice(None, None, -(-d // _HASHED))
    bits = bits_at(rows[:, columns], here[:, columns]).astype(np.uint64, copy=False)
    hashed = _mixed(np.einsum("ij,j->i", bits, factors[0, : bits.shape[1]]))
    chosen = np.flatnonzero(hashed < np.uint64(min(share * d / count, 1.0) * 0xFFFFFFFFFFFFF800))
    places = np.sort((_mixed(hashed[chosen, None] + factors[1, :count]) % np.uint64(d)).astype(np.int64), axis=1)
    held = here[chosen[:, None], places]
    held[:, 1:] &= places[:, 1:] != places[:, :-1]
    held[here[chosen].sum(axis=1) <= held.sum(axis=1)] = False
    sample, which = np.nonzero(held)
    return chosen[sample], places[sample, which]


def _mixed(values: Array) -> Array:
    """Return integers whose bits are mixed (SplitMix64: Steele, Lea & Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed

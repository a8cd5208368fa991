"""Samples with missing values under a model of components and noise: what is missing, and what is expected there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dpca.choices import INFINITE
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.pixels import to_pixels

#: Rows of one step: enough for a matrix product, and few matrices (k, k).
BLOCK_ROWS = 512
# Most components for which LAPACK takes little of the time: loading compiled loops would take longer.
_LAPACK_TO = 8
# Rows that stay in the cache from one step to the next.
_CACHED_ROWS = 64
#: Smallest variance of noise, that of constant values. Equations with it stay regular.
LEAST_NOISE = float(np.finfo(np.float64).tiny)
# Variances below this share of the largest one, or of the noise, are taken as this share.
_LEAST_VARIANCE = 1e-12


class LowRank(NamedTuple):
    """Probabilistic PCA (Tipping & Bishop 1999): x = mean + sum_j y_j components_j + noise.

    Attributes
    ----------
    components : array (k, d), orthonormal rows
    variances : array (k,), float64
        Variances of the independent scores y_j, without noise, descending.
    mean : array (d,), float64
    noise : float
        Variance of the noise of each attribute.
    """

    components: Array
    variances: Array
    mean: Array
    noise: float

    @classmethod
    def of(
        cls, rows: Array, explained: Array, total: float, mean: Array, counts: tuple[int, int] | None = None
    ) -> LowRank:
        """Return the model with components (k, d), possibly 0, and the variances along them and in total.

        The mean is NaN at attributes that the model does not know. ``counts`` are those of `counts_of` for whole
        samples, if the components and the mean are those of a box.
        """
        k, known = counts_of(rows, mean) if counts is None else counts
        left = max(float(total - explained.sum()), 0.0) / max(known - k, 1)
        # Without other directions, noise is rounding error.
        noise = max(left, float(np.finfo(rows.dtype).eps) * total, LEAST_NOISE)
        # A part without components has one of length 0.
        variances = np.maximum(explained[: max(k, 1)] - noise, 0)
        return cls(rows[: len(variances)], variances, mean, noise)

    @property
    def deviations(self) -> Array:
        """Standard deviations (k,) of the scores, positive."""
        floor = max(float(self.variances[0]), self.noise) * _LEAST_VARIANCE
        floor = max(floor, LEAST_NOISE)
        deviations: Array = np.sqrt(np.maximum(self.variances, floor))
        return deviations

    @property
    def ridge(self) -> Array:
        """The noise relative to the variance of each score (k,)."""
        return self.noise / self.deviations**2

    def known_at(self, some: Array) -> LowRank:
        """Return the model with a mean of NaN, and components of 0, at attributes other than ``some``."""
        return self._replace(mean=np.where(some, self.mean, np.nan), components=np.where(some, self.components, 0))

    def result(self, k: int, n_samples: int) -> dict[str, Array]:
        """Return the first k components as the result of a rule, with the variances (divisor n - 1) of n samples.

        There are no more components than attributes with values, whose mean is not NaN.
        """
        noise, share = 0.0 if self.noise <= LEAST_NOISE else self.noise, n_samples / max(n_samples - 1, 1)
        known = int((~np.isnan(self.mean)).sum())
        explained = (self.variances[: min(k, known)] + noise) * share
        return {
            "components": self.components[: len(explained)],
            "explained_variance": explained,
            "total_variance": np.asarray(explained.sum() + (known - len(explained)) * noise * share),
            "mean": self.mean,
        }


def counts_of(rows: Array, mean: Array) -> tuple[int, int]:
    """Return the number of components (k, d) that are not 0, and of attributes that the model knows."""
    return int((np.einsum("ij,ij->i", rows, rows) > 0.5).sum()), int((~np.isnan(mean)).sum())


class ScoreDistribution(NamedTuple):
    """The distribution of the scores of n samples, given the values that are there."""

    scores: Array
    """Expectations (n, k), float64."""
    gram: Array
    """Products of the components at the values that are there, the upper triangles (k (k + 1) / 2, n), see `paired`."""
    inverse: Array
    """(gram + diag(ridge))^-1, as ``gram``. Times the noise, it is the covariance of the scores."""
    gaps: Array
    """Indices (m,) of the samples with missing values."""
    present: Array
    """1 where a value of these samples is there, and 0 elsewhere (m, d), in the type of the values."""


def is_marked(values: Array, missing: Any) -> Array:
    """Return which values equal the number ``missing``; if it is `INFINITE`, which are infinite."""
    found: Array = np.isinf(values) if missing == INFINITE else values == missing
    return found


def is_present(values: Array, missing: Any = None) -> Array:
    """Return which values are there: those that are not NaN and do not equal the number ``missing``.

    If ``missing`` is `INFINITE`, infinities are missing, too.

    Raises
    ------
    ValueError
        If another value is infinite.
    """
    if missing == INFINITE:
        return np.isfinite(values)
    here: Array = np.ones(values.shape, bool) if missing is None else ~is_marked(values, missing)
    if values.dtype.kind == "f":
        here &= ~np.isnan(values)
        if (np.isinf(values) & here).any():
            raise ValueError("a value is infinite: mark it as missing by NaN")
    return here


def centered_rows(rows: Array, here: Array, mean: Array, dtype: np.dtype[Any]) -> Array:
    """Return rows minus the mean in a floating-point type, and 0 where values are missing."""
    x, shift = np.empty(rows.shape, dtype), mean.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for few in blocks(len(rows), _CACHED_ROWS):
            np.subtract(rows[few], shift, out=x[few], dtype=dtype)
            x[few] = bits_at(x[few], here[few]).view(dtype)
    return x


def bits_at(values: Array, here: Array) -> Array:
    """Return the bits of values as unsigned integers, and 0 where they are not ``here``.

    Takes less than half of the time of numpy's selections.
    """
    size = values.dtype.itemsize
    mask = np.negative(here.view(np.int8)).astype(f"i{size}").view(f"u{size}")
    return np.bitwise_and(values.view(mask.dtype), mask, out=mask)


def paired(components: Array) -> Array:
    """Return the products of all pairs of rows (k (k + 1) / 2, d) of the components, in the order of `unpaired`."""
    first, second = np.triu_indices(len(components))
    return components[first] * components[second]


def unpaired(values: Array, k: int) -> Array:
    """Return symmetric matrices (..., k, k) from their upper triangles (..., k (k + 1) / 2)."""
    first, second = np.triu_indices(k)
    full = np.empty((*values.shape[:-1], k, k))
    full[..., first, second] = values
    full[..., second, first] = values
    return full


def expected_scores(x: Array, here: Array, components: Array, pairs: Array, ridge: Array) -> ScoreDistribution:
    """Return the distribution of scores, given centered values (n, d) that are 0 where they are not ``here``.

    Costs n d k (k + 1) operations for rows with gaps, n d k for others, and n k^3.
    """
    first, second = np.triu_indices(len(components))
    products, gram, gaps, present = _products(x, here, components, pairs, (first == second).astype(np.float64))
    inverse, scores = _solved(gram, products, ridge, x.dtype)
    return ScoreDistribution(scores.T, gram, inverse, gaps, present)


def _products(
    x: Array, here: Array, components: Array, pairs: Array, complete: Array
) -> tuple[Array, Array, Array, Array]:
    """Return the products (k, n) of components with values, those of components (k (k + 1) / 2, n), and gaps.

    ``complete`` are the products of components for rows without gaps. Gaps are as in `ScoreDistribution`.
    """
    gaps = np.flatnonzero(~here.all(axis=1))
    present = (here if gaps.size == len(here) else here[gaps]).astype(x.dtype)
    known = (pairs @ present.T).astype(np.float64, copy=False)
    if gaps.size == len(here):
        gram = known
    else:
        gram = np.broadcast_to(complete[:, None], (len(pairs), len(x))).copy()
        gram[:, gaps] = known
    return (components @ x.T).astype(np.float64), gram, gaps, present


def _solved(gram: Array, products: Array, ridge: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return (gram + diag(ridge))^-1, as ``gram``, and the scores (k, n); ``products`` are overwritten."""
    k, (first, second) = len(ridge), np.triu_indices(len(ridge))
    inverse, scores = gram.copy(), products
    inverse[first == second] += ridge[:, None]
    if k > _LAPACK_TO:
        from dpca.kernels.symmetric import solve_and_invert

        # No pivot is smaller than its ridge, but for the rounding errors of the products.
        solve_and_invert(inverse, np.maximum(ridge, np.finfo(dtype).eps), scores)
        return inverse, scores
    found = np.linalg.inv(unpaired(inverse.T, k))
    return found[:, first, second].T, np.einsum("nij,jn->in", found, scores)


def completed_scores(model: LowRank, rows: Array, missing: Any, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the expected scores (n, k) of complete samples, given incomplete ones, and their standard errors.

    These are the projections of samples in which missing values are filled with their expectation. With the components
    V_o at the values that are there, and V_m at the others, V_o V_o^T + V_m V_m^T = I: the projection is
    (I + diag(ridge)) y with the expected scores y. Its covariance is V_m cov(x_m) V_m^T.
    """
    components, ridge = model.components.astype(dtype), model.ridge
    pairs, k = paired(components), len(components)
    scores, errors = np.empty((len(rows), k)), np.empty((len(rows), k))
    for few in blocks(len(rows), BLOCK_ROWS):
        here = _known(model, rows[few], missing)
        found = expected_scores(centered_rows(rows[few], here, model.mean, dtype), here, components, pairs, ridge)
        scores[few], errors[few] = _completed(model, found.scores, found.gram, found.inverse)
    return scores, errors


def _completed(model: LowRank, scores: Array, gram: Array, inverse: Array) -> tuple[Array, Array]:
    """Return the results of `completed_scores`, given those of `expected_scores`."""
    k = len(model.variances)
    absent = np.eye(k) - unpaired(gram.T, k)
    spread = absent @ unpaired(inverse.T, k) @ absent + absent
    return scores * (1 + model.ridge), np.sqrt(np.maximum(model.noise * np.einsum("nii->ni", spread), 0))


def sums_of_box(model: LowRank, rows: Array, missing: Any, dtype: np.dtype[Any]) -> Array:
    """Return the sums (n, k + k (k + 1) / 2 + 1), float64, of a box of samples; those of all boxes give their scores.

    They are the products of the components with the values that are there, those of the components at these values
    with each other, see `ScoreDistribution`, and the number of missing values. ``model`` is that of the box. Costs as
    `expected_scores`.
    """
    components, unknown = model.components.astype(dtype), np.isnan(model.mean)
    pairs, k = paired(components), len(components)
    sums, complete = np.empty((len(rows), k + len(pairs) + 1)), pairs.sum(axis=1, dtype=np.float64)
    for few in blocks(len(rows), BLOCK_ROWS):
        # At attributes that the model does not know, components are 0.
        here = is_present(rows[few], missing) | unknown
        x = centered_rows(rows[few], here & ~unknown, model.mean, dtype)
        products, gram, _, _ = _products(x, here, components, pairs, complete)
        sums[few, :k], sums[few, k:-1] = products.T, gram.T
        sums[few, -1] = (~here).sum(axis=1)
    return sums


def summed_scores(model: LowRank, sums: Array, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Return the results of `completed_scores` from the sums of all boxes, and those that `filled_rows` takes.

    The scores of samples without missing values are the products, and their errors are 0.
    """
    k = len(model.variances)
    products, gram, whole = sums[:, :k], sums[:, k:-1].T, sums[:, -1] == 0
    inverse, expected = _solved(gram, products.T.copy(), model.ridge, dtype)
    scores, errors = _completed(model, expected.T, gram, inverse)
    scores[whole], errors[whole] = products[whole], 0
    return scores, errors, np.concatenate([expected, inverse]).T


def _known(model: LowRank, rows: Array, missing: Any) -> Array:
    """Return which values are there, at attributes that the model knows."""
    return is_present(rows, missing) & ~np.isnan(model.mean)


def filled_rows(
    model: LowRank, rows: Array, missing: Any, dtype: np.dtype[Any], expected: Array | None = None
) -> tuple[Array, Array]:
    """Return rows (n, d) with missing values replaced by their expectation, and standard errors, 0 where a value is.

    Integers are rounded. Attributes with a mean of NaN, which the model does not know, do not change; their standard
    error is NaN. If rows are those of a box, ``expected`` (n, k + k (k + 1) / 2) is that of `summed_scores`.
    """
    components, ridge, unknown = model.components.astype(dtype), model.ridge, np.isnan(model.mean)
    pairs, (first, second), k = paired(components), np.triu_indices(len(components)), len(components)
    filled, errors = rows.copy(), np.zeros(rows.shape, np.float32)
    errors[:, unknown] = np.nan
    for few in blocks(len(rows), BLOCK_ROWS):
        here = is_present(rows[few], missing)
        absent = ~here & ~unknown
        gaps = np.flatnonzero(absent.any(axis=1))
        absent, here = absent[gaps], here[gaps] & ~unknown
        if expected is None:
            found = expected_scores(
                centered_rows(rows[few][gaps], here, model.mean, dtype), here, components, pairs, ridge
            )
            scores, inverse = found.scores, found.inverse.T
        else:
            scores, inverse = np.split(expected[few][gaps], [k], axis=1)
        values = scores.astype(dtype) @ components + model.mean.astype(dtype)
        # The products of two different components occur twice in the variance of an attribute.
        twice = np.where(first == second, 1, 2) * inverse
        spread = np.sqrt(model.noise * (1 + np.maximum(twice.astype(dtype) @ pairs, 0)))
        sample, attribute = np.nonzero(absent)
        at = few.start + gaps[sample], attribute
        filled[at] = to_pixels(values[absent], rows.dtype, (-math.inf, math.inf))
        errors[at] = spread[absent]
    return filled, errors

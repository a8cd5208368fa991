"""Estimates the captured variance relative to the best components, from a random sample of the stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.namespace import beside, is_numpy, namespace, to_numpy
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import ALL, AttributeBlocks, State, StateLayout
from dpca.rules.incremental import nystrom
from dpca.rules.incremental.rows import ByteRows, exact_kernel

_ROWS, _KEYS = "sampled_rows", "sampled_keys"
# Limits of the sample: at most 512 rows, which cost less than a step of the rule, and at most 32 MiB or a quarter of
# the state of the rule.
_MOST_ROWS, _MOST_BYTES = 512, 2**25
# Fewer rows give no useful standard error.
_LEAST_ROWS = 30
# Allowance for higher orders, as a share of the missed variance. They were up to two thirds of it when 2 % were missed,
# and a tenth at 0.1 %.
_BEYOND = 0.25
# Keys of samples are at most 1. This one says that not all samples of a stream had equal weights. It remains in merges.
_UNEQUAL = 2.0
_QUIET = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True)
class Sampled(Wrapper):
    """A rule with an estimate of the captured variance, from a random sample of the stream.

    Every sample gets a random key. The samples with the largest keys are retained, for any order, batches and merges
    (Vitter 1985; bottom-k samples, Cohen & Kaplan 2007). Keys depend on the position in the stream and on the sum of
    the bytes of the first sample of a batch, so that the sample is reproducible.

    Parameters
    ----------
    rule : IncrementalSVD, or a wrapper of one
        It must have ``forgetting`` 1, because all samples have equal weight here.

    Results of ``finish``: those of the rule; ``captured_estimate`` (), the captured variance relative to that of the
    best components, and ``captured_estimate_error`` (), its standard error, both float64, see `estimate`. They are nan
    for fewer than 30 samples, and after `weigh`. Holds up to 512 samples, in 32 MiB or a quarter of the state of the
    rule. The additional cost of ``finish`` is less than a step of the rule.
    """

    by_attribute = (_ROWS,)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        room = max(_MOST_BYTES, self.rule.state_bytes(n_features, dtype) // 4)
        n = min(_MOST_ROWS, room // (n_features * np.dtype(dtype).itemsize))
        return {_ROWS: ((n, n_features), dtype), _KEYS: ((n,), float)}

    def update(self, state: State, batch: Array) -> State:
        """Process a batch (n_samples, n_features)."""
        if n := batch.shape[0]:
            first = np.ascontiguousarray(to_numpy(batch[:1, :]))
            # Integers, because a sum over blocks of attributes must not depend on the blocks.
            (total,) = state.blocks.summed(first.view(np.uint8).sum(dtype=np.int64))
            keys = np.random.default_rng([int(state.counts["n_samples"]), int(total)]).random((n,))
            _keep(state, 1 - keys, batch)
        return self.rule.update(state, batch)

    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process samples with weights. There is no estimate then."""
        state.arrays[_KEYS][...] = _UNEQUAL
        weighted: State = self.rule.weigh(state, batch, weights)
        return weighted

    def of_weighted_rows(self, rows: State, mean: Array, total: float, dtype: DTypeLike) -> State:
        """Return the state of samples with weights, see `IncrementalSVD`. There is no estimate then."""
        state, own = self.rule.of_weighted_rows(rows, mean, total, dtype), self._own_layout(len(mean), dtype)
        sample = State.zeros(own, self.counts)
        sample.arrays[_KEYS][...] = _UNEQUAL
        return State(state.arrays | sample.arrays, state.counts)

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams."""
        _keep(a, b.arrays[_KEYS], b.arrays[_ROWS])
        return super().merge(a, b)

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result of the rule, and the estimate."""
        n, keys = state.counts["n_samples"], state.arrays[_KEYS]
        rows = state.arrays[_ROWS][np.count_nonzero(keys == 0) :]
        result: dict[str, Array] = _wide(self.rule).finish(state)
        directions, variances, _ = (result.pop(name) for name in ("directions", "direction_variance", "outside"))
        share = error = math.nan
        if len(rows) >= _LEAST_ROWS and keys.max() < _UNEQUAL:
            bound, k = float(result["captured_bound"]), result["components"].shape[0]
            mean, variances = to_numpy(result["mean"]), to_numpy(variances)
            share, error = estimate(rows, mean, directions, variances, k, n, state.blocks)
            # The proven bound limits both values, and replaces values that are not finite.
            share, error = min(max(bound, share), 1.0), min(1 - bound, error)
        return {**result, "captured_estimate": np.asarray(share), "captured_estimate_error": np.asarray(error)}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays, of the rule or of the estimate."""
        m = self._own_layout(n_features, dtype)[_ROWS][0][0]
        q = self.rule.state_bytes(n_features, dtype) // (4 * n_features)  # a lower bound
        estimated = 8 * ((2 * m + q) * min(n_features, nystrom.COLUMNS) + 6 * m * (m + q))
        return int(max(self.rule.work_bytes(n_rows, n_features, dtype), estimated))

    def summed_bytes(self, n_rows: int, n_features: int) -> int:
        """Return the bytes of sums over blocks of attributes, of the rule or of the estimate."""
        return int(self.rule.summed_bytes(max(n_rows, _MOST_ROWS), n_features))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return int(self.rule.result_bytes(n_features, dtype)) + 16


def _wide(rule: Any) -> Any:
    """Return a rule that also returns all directions. They need no memory besides its state."""
    return replace(rule, rule=_wide(rule.rule)) if isinstance(rule, Wrapper) else replace(rule, wide=True)


def _keep(state: State, keys: Array, rows: Array) -> None:
    """Retain the samples with the largest keys among those of a state and new ones. Free rows are used first."""
    held, kept = state.arrays[_KEYS], state.arrays[_ROWS]
    order = np.argsort(-np.concatenate([held, keys]), kind="stable")
    new, old = order[: len(held)] - len(held), order[len(held) :]
    new, free = new[new >= 0], old[old < len(held)]
    if len(new):
        held[free], kept[free] = keys[new], to_numpy(namespace(rows).take(rows, beside(new, rows), axis=0))


@_QUIET
def estimate(
    rows: Array, mean: Array, directions: Array, variances: Array, k: int, n: int, over: AttributeBlocks = ALL
) -> tuple[float, float]:
    """Estimate the variance of the leading k directions relative to that of the best k components.

    Let C be the covariance of the stream and lambda_i the variances of its directions v_i. To second order, the best
    components capture more by the sum over i <= k < j of (v_i^T C v_j)^2 / (lambda_i - lambda_j) (Kato 1995, section
    II.2). The part outside of all directions counts like the last direction. Pairs of rows yield unbiased estimates of
    the squares (U-statistics, Hoeffding 1948), so that no row is held out. A correction makes them exact if the rows
    are the whole stream. Gaps are widened by 2 sqrt(lambda_i lambda_j / m), because m rows do not resolve smaller
    ones. The standard error is that of the jackknife. Its mean is at least the true one (Efron & Stein 1981), and about
    1.4 times the true one if nothing is missed. A fourth of the missed variance is added for higher orders.

    Parameters
    ----------
    rows : array (m, d)
        Random sample of the n samples of the stream.
    mean : array (d,)
    directions : array (q, d), orthonormal rows
    variances : array (q,), descending
        Known variances along the directions.
    over : AttributeBlocks
        The blocks of attributes of ``rows``, ``mean`` and ``directions``.

    Returns
    -------
    share, error : float
        The share may exceed 1. Both are not finite if the fourth power of a value overflows, or if nothing varies.
        Costs 2 m d (m + q) operations in the dtype of ``directions``.
    """
    m = len(rows)
    products, along = _products(rows, mean, directions, over)
    products -= along @ along.T
    leading, further = along[:, :k], along[:, k:]
    inside, outside = (_weights(variances[:k], others, m) for others in (variances[k:], variances[-1:]))
    products *= (leading * outside[:, 0]) @ leading.T
    own = ((leading**2 @ inside) * further**2).sum(axis=1) + products.diagonal()
    pairs = (leading @ (inside * (leading.T @ further)) * further).sum(axis=1) + products.sum(axis=1)
    each = (pairs - own) / (m - 1)
    square = each.mean()
    missed = float(n / (n - 1) * (square + own.mean() / (n - 1)))
    error = 2 / (m - 2) * math.sqrt((m - 1) / m * float(((each - square) ** 2).sum()))
    captured = variances[:k].sum()
    return float(captured / (captured + missed)), float(math.hypot(error, _BEYOND * missed) / captured)


def _products(rows: Array, mean: Array, directions: Array, over: AttributeBlocks) -> tuple[Array, Array]:
    """Return the products of centered rows with each other (m, m) and with the directions (m, q), float64.

    The precision of the directions is enough: errors of products are smaller than those of the sample.
    """
    m, q = len(rows), directions.shape[0]
    if is_numpy(directions) and (kernel := exact_kernel(rows, q, over)):
        along, (products,) = ByteRows(rows, mean, math.inf, q, kernel).products(directions, m)
        return products, along
    products, along = np.zeros((m, m)), np.zeros((m, q))
    for columns in blocks(rows.shape[1], nystrom.COLUMNS):
        basis = to_numpy(directions[:, columns])
        part = (rows[:, columns] - mean[columns]).astype(basis.dtype, copy=False)
        products += part @ part.T
        along += part @ basis.T
    products, along = over.summed(products, along)
    return products, along


def _weights(variances: Array, others: Array, m: int) -> Array:
    """Return 1 over the widened gaps (k, l) between variances (k,) and others (l,)."""
    gaps = np.subtract.outer(variances, others)
    widened = np.sqrt(gaps**2 + 4 / m * np.multiply.outer(variances, others))
    return 1 / np.maximum(widened, float(np.finfo(float).eps) * variances[0])

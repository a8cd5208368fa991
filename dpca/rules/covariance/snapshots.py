"""Exact principal components of fewer samples than attributes, from the samples themselves, in one pass.

The method of snapshots (Sirovich 1987, part I, section 4): the Gram matrix of n centered samples has the eigenvalues of
their scatter matrix. For its eigenvectors u, the components are X^T u / sqrt(eigenvalue). For n < d the samples take
less memory than a covariance, and their products less time. `dpca.rules.dual` divides samples that are too
large for a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.rule import Rule, check_products
from dpca.rules.base.state import State, StateLayout

# Small parts of a partition are solved together up to these bytes of float64 values, which saves most of the calls.
_TOGETHER_BYTES = 2**22
# Attributes of one product, and samples up to which eigenproblems are solved together. Neither depends on the number of
# parts that are solved together, so that the result of a part does not, either.
_BLOCK_ATTRIBUTES, _SMALL_PROBLEM = 4096, 64
# Directions with a smaller share of the variance may not be orthogonal up to the rounding error of float32.
_SMALL_SHARE = 1e-8


@dataclass(frozen=True)
class KeptSamples(Rule):
    """At most ``n_samples`` samples themselves, for what is computed from all of them at once.

    Parameters
    ----------
    n_samples : int
        Number of samples of the whole stream. A result of fewer samples is that of the samples so far.
    sample_weight : array (n_samples,), optional
        How often each sample counts, above 0; see `weights_of`.

    Results of ``finish``: ``rows`` (n, d) in the dtype of the samples.
    """

    n_samples: int
    sample_weight: Array | None = field(default=None, kw_only=True)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"rows": ((self.n_samples, n_features), dtype)}

    def _take(self, state: State, batch: Array) -> None:
        first = state.counts["n_samples"]
        if first + len(batch) > self.n_samples:
            raise ValueError(f"got {first + len(batch)} samples, but n_samples is {self.n_samples}: give all of them")
        state.arrays["rows"][first : first + len(batch)] = batch
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, Array]:
        return {"rows": state.arrays["rows"][: state.counts["n_samples"]]}

    def for_samples(self, n_samples: int) -> Self:
        """Return the rule for another number of samples."""
        known = self.sample_weight
        return replace(self, n_samples=n_samples, sample_weight=None if known is None else np.resize(known, n_samples))

    def weights_of(self, n: int) -> tuple[Array | None, float]:
        """Return how often each of the first ``n`` samples counts, None if once, and the divisor of their variances.

        Raises
        ------
        ValueError
            If the weights have a sum of at most 1.
        """
        if self.sample_weight is None:
            return None, n - 1
        weights = self.sample_weight[:n]
        if not (total := float(weights.sum())) > 1:
            raise ValueError(f"{n} sample(s) of weight {total:g} have no variance: give a sum of weights above 1")
        return weights, total - 1

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return True: the result is computed from all samples at once."""
        return True

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return 0: samples are copied in place."""
        return 0


@dataclass(frozen=True)
class SnapshotPCA(KeptSamples):
    """Leading principal components of at most ``n_samples`` samples. The state holds the samples.

    Parameters
    ----------
    n_samples : int
        See `KeptSamples`, also for ``sample_weight``.
    n_components : int
        Number of components, at most that of attributes. If they exceed the rank of the samples, further rows complete
        the orthonormal basis.

    Products are float64, so that the result does not depend on batches. Results of ``finish``: ``mean`` (d,) float64,
    ``components`` (k, d) in the working dtype, ``explained_variance`` (k,), descending, and ``total_variance`` (),
    float64. Costs n^2 d + n^3 operations, and n d values of the dtype of the samples.
    """

    n_components: int
    least_samples = 2

    def _finish(self, state: State) -> dict[str, Array]:
        return next(self._solved([state]))

    def finish_all(self, states: Iterable[State]) -> Iterator[dict[str, Array]]:
        """Yield the result of each state. Neighbors of one shape are solved together if they are small."""
        held: list[State] = []
        for state in states:
            rows = state.arrays["rows"]
            full = 8 * len(held) * rows.size > _TOGETHER_BYTES
            if held and (full or held[0].arrays["rows"].shape != rows.shape):
                yield from self._solved(held)
            held.append(state)
        if held:
            yield from self._solved(held)

    def _solved(self, states: list[State]) -> Iterator[dict[str, Array]]:
        """Yield the results of states of one shape, and empty the list."""
        n = states[0].counts["n_samples"]
        if n < self.least_samples:
            raise ValueError(f"{n} sample(s) have no variance: give at least {self.least_samples}")
        weights, divisor = self.weights_of(n)
        rows = np.stack([state.arrays.pop("rows")[:n] for state in states])
        states.clear()
        found = snapshot_components(rows, self.n_components, weights, divisor)
        for i in range(len(rows)):
            yield {name: values[i] for name, values in found.items()}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        k = min(self.n_components, n_features)
        return n_features * (8 + k * working_dtype(dtype).itemsize) + 8 * (k + 1)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: stacked samples, a centered block, and the eigenproblem."""
        n, k, itemsize = self.n_samples, min(self.n_components, n_features), np.dtype(dtype).itemsize
        together = 1 + _TOGETHER_BYTES // (8 * n * n_features)
        stacked = together * (n * n_features * itemsize + self.result_bytes(n_features, dtype))
        centered = 2 * 8 * together * n * min(n_features, _BLOCK_ATTRIBUTES)
        solver = together * 40 * n * n + linalg.eigh_bytes(n, min(n, k))
        completed = 4 * 8 * k * n_features  # the basis of samples with too small a rank
        return stacked + centered + solver + completed


def snapshot_components(rows: Array, n_components: int, weights: Array | None, divisor: float) -> dict[str, Array]:
    """Return the mean and the leading components of each of some stacks of samples.

    Parameters
    ----------
    rows : array (m, n, d)
        m stacks of n samples, n at least 2.
    n_components : int
    weights : array (n,), float64, above 0, or None
        How often each sample counts; None: once.
    divisor : float
        That of variances.

    Returns
    -------
    dict
        The results of `SnapshotPCA`, each with a leading axis m.
    """
    (m, n, d), dtype = rows.shape, working_dtype(rows.dtype)
    k = min(n_components, d)
    mean, gram = np.empty((m, d)), np.zeros((m, n, n))
    columns = list(blocks(d, _BLOCK_ATTRIBUTES))
    roots = None if weights is None else np.sqrt(weights)[:, None]

    def about(center: Array, few: slice) -> Array:
        x = linalg.scratch("snapshots", (m, n, center.shape[1]), np.dtype(np.float64))
        # Together faster than one call that converts and subtracts.
        np.copyto(x, rows[..., few])
        x -= center[:, None]
        return x

    with np.errstate(over="ignore", invalid="ignore"):
        for few in columns:
            # About the first sample, so that the mean of equal samples is exact.
            first = rows[:, 0, few].astype(np.float64)
            x = about(first, few)
            offset = x.mean(axis=1) if weights is None else weights @ x / weights.sum()
            x -= offset[:, None]
            mean[:, few] = first + offset
            if roots is not None:
                x *= roots
            gram += x @ x.swapaxes(1, 2)
    total = np.trace(gram, axis1=1, axis2=2)
    check_products(np.isfinite(total).all())
    values, vectors = leading_pairs(gram, min(n, k))
    scale = np.zeros_like(values)
    np.divide(1, np.sqrt(values), out=scale, where=values > 0)
    vectors *= scale[..., None]
    components = np.zeros((m, k, d), dtype)
    for few in columns:
        if len(columns) > 1:
            x = about(mean[:, few], few)
            if roots is not None:
                x *= roots
        components[:, : values.shape[1], few] = vectors @ x
    # n centered samples have no variance in one direction, so this includes n components and more.
    for i in np.flatnonzero(values[:, -1] <= _SMALL_SHARE * total):
        components[i] = orthonormalize(components[i].astype(np.float64))
    variance = np.zeros((m, k))
    variance[:, : values.shape[1]] = values / divisor
    return {
        "mean": mean,
        "components": linalg.fix_signs(components),
        "explained_variance": variance,
        "total_variance": total / divisor,
    }


def leading_pairs(gram: Array, k: int) -> tuple[Array, Array]:
    """Return the k leading eigenvalues (m, k) of each matrix, and their eigenvectors as rows (m, k, n).

    Only lower triangles are read; the matrices are overwritten.
    """
    if gram.shape[1] <= _SMALL_PROBLEM:
        return linalg.direct_eigh(gram, k)
    values, vectors = zip(*(linalg.direct_eigh(one, k) for one in gram), strict=True)
    return np.stack(values), np.stack(vectors)

"""The solver "dual" of `PCA` for windows of successive samples, which reads each sample once in a pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import attribute_blocks, gram_blocks, gram_of, joined
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid
from dpca.rules.dual.components import DualComponents
from dpca.rules.dual.gram import float_gram, product_dtype
from dpca.rules.dual.weights import dual_basis, dual_share, dual_weights
from dpca.storage.remote.memory import usable_bytes


class WindowProblem(Protocol):
    """The part of `dpca.models.linear.pca_solvers.SolverProblem` that matters here, where d counts all lags."""

    @property
    def d(self) -> int: ...  # noqa: D102
    @property
    def k(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102
    @property
    def center(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Windows:
    """Windows of n samples: window i has the samples i stride + l lag for l from 0 to n_lags - 1.

    Attributes
    ----------
    n, n_windows, n_lags, lag, stride : int
    """

    n: int
    n_windows: int
    n_lags: int
    lag: int
    stride: int

    @classmethod
    def of(cls, source: Source) -> Windows | None:
        """Return the windows of a source, None if they are none or their own Gram matrix costs less."""
        if not isinstance(source, LaggedSource):
            return None
        n, (n_windows, n_lags) = source.source.shape[0], source.shape[:2]
        return cls(n, n_windows, n_lags, source.lag, source.stride) if n**2 <= n_windows**2 * n_lags else None

    def of_lag(self, j: int) -> slice:
        """Return the samples of all windows with one lag."""
        first = j * self.lag
        return slice(first, first + (self.n_windows - 1) * self.stride + 1, self.stride)

    def gram(self, gram: Array) -> Array:
        """Return the Gram matrix of windows from that (n, n) of samples, of the same dtype."""
        return np.sum([gram[self.of_lag(j), self.of_lag(j)] for j in range(self.n_lags)], axis=0, dtype=gram.dtype)

    def weights(self, weights: Array, *, with_mean: bool) -> Array:
        """Return weights (n_rows n_lags, n) of samples from those (n_rows, n_windows) of windows, row by row.

        ``with_mean`` adds the rows of the mean of each lag.
        """
        rows = np.concatenate([weights, np.full((1, self.n_windows), 1 / self.n_windows)]) if with_mean else weights
        placed = np.zeros((len(rows), self.n_lags, self.n))
        for j in range(self.n_lags):
            placed[:, j, self.of_lag(j)] = rows
        return placed.reshape(-1, self.n)


def dual_of_windows(windows: Windows, problem: WindowProblem, passes: Passes) -> dict[str, Array]:
    """Find the components of windows from the Gram matrix of their samples, in two passes over samples.

    The inner product of two windows is the sum of those of their samples over the lags. Both passes read blocks of
    attributes of all samples. The first one costs n^2 d operations for samples of d attributes, instead of
    n_windows^2 n_lags d.
    """
    grid, over_samples = _first_plan(windows, problem, passes)
    gram, dtype = gram_of(over_samples, grid, problem.center), over_samples.source.dtype
    exact = gram.dtype == object
    gram = windows.gram(gram if exact else linalg.symmetrize(gram))
    gram = float_gram(gram, problem.center)
    total = float(gram.trace())
    if problem.center and not exact:
        gram -= gram.mean(axis=0)
        gram -= gram.mean(axis=1)[:, None]
    products = product_dtype(windows.n, dtype)
    found = dual_weights(gram, problem.k, products)
    components, mean = _components(windows, found["weights"], problem, over_samples)
    passes.count, passes.report = over_samples.count, over_samples.report
    values, k = found["explained_variance"], problem.k
    # Rounding errors are relative to products of samples, before each lag is centered.
    bounded = found | {"total_variance": np.asarray(2 * total / (windows.n_windows - 1))}
    bound = dual_share(bounded, float(mean @ mean), k, problem.d, problem.dtype, products=products)
    return {
        "mean": mean,
        "components": components,
        "explained_variance": np.concatenate([values, np.zeros(k - len(values))]),
        "total_variance": found["total_variance"],
        "captured_bound": np.asarray(bound),
    }


def plan_windows(windows: Windows, problem: WindowProblem, passes: Passes) -> None:
    """Plan both passes of `dual_of_windows`.

    Raises
    ------
    PlanError
        If a task cannot hold all samples at a few attributes, or this process the components.
    """
    _, over_samples = _first_plan(windows, problem, passes)
    _second_plan(windows, no_values((problem.k, windows.n_windows), np.float64), problem, over_samples)


def _first_plan(windows: Windows, problem: WindowProblem, passes: Passes) -> tuple[CellGrid, Passes]:
    source = passes.source
    assert isinstance(source, LaggedSource)
    over_samples = Passes(source.source, passes.run)
    return gram_blocks(over_samples, problem.center, problem.k), over_samples


def _second_plan(
    windows: Windows, weights: Array, problem: WindowProblem, over_samples: Passes
) -> tuple[DualComponents, CellGrid]:
    rows = windows.weights(weights, with_mean=problem.center)
    rule = DualComponents(rows, problem.dtype, problem.center)
    grid = attribute_blocks(rule, over_samples)
    need, room = problem.d * (2 * (problem.k + 1) * problem.dtype.itemsize + 16), usable_bytes()
    if need > room:
        raise PlanError(
            f"{problem.k:,} components of {problem.d:,} attributes require {need / 1e6:,.0f} MB, but this process may "
            f"use {room / 1e6:,.0f} MB: use fewer components or lags"
        )
    return rule, grid


def _components(windows: Windows, weights: Array, problem: WindowProblem, over_samples: Passes) -> tuple[Array, Array]:
    """Return the components (k, n_lags d) and the mean (n_lags d,)."""
    rule, grid = _second_plan(windows, weights, problem, over_samples)
    results = over_samples.over(grid, rule, stage="pass 2")
    k, n_lags, d = len(weights), windows.n_lags, math.prod(grid.sample_shape)
    of_samples = joined(grid, (part["mean"][None] for part in results), 1, np.float64)
    inner = np.sum([part["inner"] for part in results], axis=0)
    # Results are freed one by one.
    images = (part.pop("image") for part in results)
    rows = joined(grid, images, len(rule.weights), rule.dtype).reshape(-1, n_lags, d)
    mean = np.repeat(of_samples, n_lags, axis=0)
    if problem.center:
        # The mean of the samples was subtracted instead of that of each lag.
        away, rows = rows[-1].astype(np.float64), rows[:-1]
        mean += away
        for row, weight in zip(rows, weights.sum(axis=1), strict=True):
            row -= (weight * away).astype(row.dtype)
    of_one = inner.reshape(-1, n_lags, inner.shape[0] // n_lags, n_lags)[:k, :, :k]
    inner = np.einsum("iljl->ij", of_one)
    return dual_basis(rows.reshape(k, n_lags * d), problem.k, inner), mean.ravel()

"""The exact principal components of a source, and how far other bases fall short of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca import linalg, metrics
from dpca.engine.fold import fold
from dpca.engine.memory import usable_bytes
from dpca.engine.plan import PlanError
from dpca.engine.source import Source, check_finite
from dpca.partition.whole import Whole
from dpca.rules.captured import Captured
from dpca.rules.covariance import Covariance
from dpca.rules.dual import Dual, dual_components
from storage.errors import DataError
from storage.progress import Progress, no_progress
from storage.tasks import one_blas_thread

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]

# Of all samples at once, for a block of attributes.
_BLOCK_BYTES = 128 * 2**20


@dataclass(frozen=True, eq=False)
class Reference:
    """The best k components of a source, by computing all there is to know of its second moments.

    Attributes
    ----------
    source : Source
    solver : str
        "covariance" or "dual".
    components : array (k, d), float64
    mean : array (d,), float64
    explained_variance : array (k,), float64
    total_variance : float
    covariance : array (d, d) or None
        Where that was the solver.
    """

    source: Source
    solver: str
    components: Array
    mean: Array
    explained_variance: Array
    total_variance: float
    covariance: Array | None = None

    def first(self, k: int) -> Reference:
        """Return the same for the first k components only."""
        return replace(self, components=self.components[:k], explained_variance=self.explained_variance[:k])

    def convergence(self, bases: Sequence[Array], *, progress: Progress = no_progress) -> list[float]:
        """Return the convergence of T 2.24 of each basis (k, d), in float64; lower is better.

        From the covariance where it is at hand; otherwise in one pass over the source, which costs 2 n d operations
        for every row of every basis.
        """
        if self.covariance is not None:
            return [metrics.convergence(basis, self.components, covariance=self.covariance) for basis in bases]
        captured, _ = self.captured([self.components, *bases], progress=progress)
        best = captured[0]
        return [math.log10(1 - found / best) if found < best else -math.inf for found in captured[1:]]

    def captured(self, bases: Sequence[Array], *, progress: Progress = no_progress) -> tuple[list[float], float]:
        """Return the variance that each basis captures, measured in float64 in one pass, and the total variance."""
        rule = Captured(list(bases), self.mean)
        partition = Whole(tuple(self.source.shape[1:]))
        (found,), _ = fold(rule, self.source, partition, progress=progress, stage="measure")
        return found["captured"].tolist(), float(found["total_variance"])


def exact_reference(source: Source, n_components: int, *, progress: Progress = no_progress) -> Reference:
    """Compute the best components of a source from its covariance, or from its dual where samples are the fewer.

    Parameters
    ----------
    source : Source
        Of n samples with d attributes.
    n_components : int
    progress : Progress

    Raises
    ------
    DataError
        If there are fewer samples or attributes than components, or a value that is not finite.
    PlanError
        If min(n, d)^2 numbers do not fit the memory.

    Notes
    -----
    Costs n d min(n, d) operations and min(n, d)^2 numbers of memory, in this process.
    """
    n, shape = source.shape[0], tuple(source.shape[1:])
    d = math.prod(shape)
    if not 1 <= n_components <= min(n - 1, d):
        raise DataError(
            f"{n_components} components of {n:,} samples with {d:,} attributes were asked for: there are "
            f"{max(min(n - 1, d), 0):,} at most"
        )
    need, room = 16 * min(n, d) ** 2, usable_bytes()
    if need > room:
        raise PlanError(
            f"the exact components of {n:,} samples with {d:,} attributes need {need / 1e6:,.0f} MB and this process "
            f"may take {room / 1e6:,.0f} MB: give fewer samples, or smaller ones (--resize)"
        )
    if d <= n:
        (found,), _ = fold(Covariance(), source, Whole(shape), progress=progress, stage="reference")
        covariance = found["covariance"]
        values, rows = linalg.leading_eigh(covariance.copy(), n_components)
        total = float(np.trace(covariance))
        return Reference(source, "covariance", rows, found["mean"], values, total, covariance)
    return _dual_reference(source, n_components, progress)


def _dual_reference(source: Source, k: int, progress: Progress) -> Reference:
    shape = tuple(source.shape[1:])
    n, d = source.shape[0], math.prod(shape)
    rule = Dual(k)
    state = rule.init(n, source.dtype)
    regions = _regions(source)
    read = source.reader()
    bar = progress("reference", 2 * n * d * source.dtype.itemsize, "B")

    def block(region: Region) -> Array:
        values = np.empty((n, *(stop - start for start, stop in region)), source.dtype)
        read((0, n), region, values)
        if source.dtype.kind == "f":
            check_finite(values, 0, source.name)
        bar.advance(values.nbytes)
        return values.reshape(n, -1)

    try:
        with one_blas_thread():
            for region in regions:
                state = rule.update(state, block(region))
            found = rule.finish(state)
            components, mean = np.empty((len(found["weights"]), *shape)), np.empty(shape)
            for region in regions:
                where = tuple(slice(start, stop) for start, stop in region)
                box = tuple(stop - start for start, stop in region)
                part, rows = dual_components(found["weights"], block(region))
                mean[where] = part.reshape(box)
                components[(slice(None), *where)] = rows.reshape(-1, *box)
    finally:
        bar.close()
    rows = components.reshape(len(components), d)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if len(rows) < k:
        raise DataError(
            f"{source.name} varies in {len(rows)} directions only and {k} components were asked for: ask for fewer"
        )
    total = float(found["total_variance"])
    return Reference(source, "dual", linalg.fix_signs(rows), mean.reshape(d), found["explained_variance"], total)


def _regions(source: Source) -> list[Region]:
    """Cut a sample into boxes of whole chunks that take about 128 MiB of all samples."""
    most = max(1, _BLOCK_BYTES // (source.shape[0] * source.dtype.itemsize))
    steps = [min(length, chunk) for length, chunk in zip(source.shape[1:], source.chunks[1:], strict=True)]
    # From the last axis on: runs of attributes that lie together.
    for axis in reversed(range(len(steps))):
        others = math.prod(steps) // steps[axis]
        steps[axis] = min(source.shape[axis + 1], max(1, most // others) // steps[axis] * steps[axis] or steps[axis])
    cuts = [
        [(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(source.shape[1:], steps, strict=True)
    ]
    return list(itertools.product(*cuts))

"""Choose the cells of a compressed store: own, shared or whole, with or without overlap, by the bytes of the store.

Components are fitted to most of a few hundred samples. The others measure how many bytes the goal takes. The store
holds each component once but scores of every sample. So cells with their own components are best if many samples show
one scene, and shared components are best if every sample is another picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.codec.cells import Components
from dpca.codec.goal import Goal
from dpca.codec.slabs import slabs_of
from dpca.codec.waves import RUN
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.compressed.encode import stated_facts
from dpca.jobs.compressed.encode_trials import Trials, groups_of, spread_runs
from dpca.jobs.scores.transform import stated_range
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import leading_eigh
from dpca.kernels.algebra.types import Array
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.cells.rank import UnmetError
from dpca.parameters.cells import CHOICES
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.storage.disk import readable_size
from dpca.storage.stack import Stack

# The most and the fewest samples to read; in between, as many as have this many bytes. One in nine is measured, the
# others are fitted. With 256 frames of a fixed camera, own components fit moving objects too poorly: the store has
# twice the bytes that it has with 512 frames.
_READ_MOST, _READ_LEAST, _READ_BYTES, _MEASURED_SHARE = 576, 3 * RUN, 2**27, 9
# Tiles of large samples to read.
_READ_TILES = 144
# Upper limit of the bytes of a row of cells in floating point. If a row has more, fewer samples are fitted.
_ROW_BYTES = 2**27
# Upper limit of the values of all components, if each cell has its own. Shared components: this many, or a third of
# the values of a cell if that is more.
_OWN_VALUES, _SHARED, _SHARED_VALUES = 2**23, 256, 3
# Other cells are discarded early if they miss the goal with a step this many times finer than one that met it.
_FINER = 32
# From this many axes of space, cells are half as long, so that they hold about as many values as cells of images.
_MANY_AXES = 3


@dataclass(frozen=True)
class CellChoice:
    """The cells that take the fewest bytes.

    Attributes
    ----------
    parameters : dict
        Parameters of a `CellPCA`, JSON-able.
    words : str
        The cells that were tried and their cost, for the report.
    read_bytes : int
        Bytes of the samples that were read.
    """

    parameters: dict[str, Any]
    words: str
    read_bytes: int


def cells_tried(model: CellPCA, sample_shape: Sequence[int], axes: Sequence[str]) -> list[dict[str, Any]]:
    """Return parameters of the cells to try first: shared with overlap, each with its own components, and one cell.

    Parameters
    ----------
    model : CellPCA
        Gives the largest length and the overlap of cells.
    sample_shape, axes
        Of a sample. Cells are no longer than the sample. In volumes they are half as long as in images.
    """
    lengths, overlap = model.cell_shape_for(axes), model.overlap
    if len(lengths) >= _MANY_AXES:
        lengths, overlap = tuple(max(1, length // 2) for length in lengths), overlap // 2
    spatial = tuple(map(int, sample_shape[: len(lengths)]))
    cell = tuple(map(min, lengths, spatial))
    overlap = min(overlap, max(cell) // 2)
    shared = {"cell_shape": list(cell), "overlap": overlap if overlap > 1 and cell != spatial else 0, "shared": True}
    own = {"cell_shape": list(cell), "overlap": 0, "shared": False}
    whole = {"cell_shape": list(spatial), "overlap": 0, "shared": False}
    return [whole] if cell == spatial else [shared, own, whole]


def choose_cells(
    stack: Stack, model: CellPCA, goal: Goal, fits: Callable[[Mapping[str, Any]], bool] = lambda parameters: True
) -> CellChoice:
    """Return the cells with the smallest store or, if the goal is a ratio, with the smallest error.

    Parameters
    ----------
    stack : Stack
    model : CellPCA
        Not fitted; as for `cells_tried`.
    goal : Goal
    fits : callable, optional
        Returns whether the memory suffices to fit the whole stack with given parameters. The first cells are tried in
        any case.

    Raises
    ------
    DataError
        If the stack states no data range.

    Notes
    -----
    Reads at least 48 samples and at most 576, within these limits 128 MiB. Up to four kinds of cells are fitted to
    eight ninths of them; each encodes the others about eight times. For n samples of d values, cells of c values and k
    components this takes O(n d (c + n + k)) time. Memory holds the samples, up to 128 MiB for a row of cells in
    floating point, and 2^23 values of components. If the stack has no more samples, all are fitted and measured.
    """
    trial = _Trial(stack, goal)
    first = cells_tried(model, stack.sample_shape, stack.axes[1:])
    if isinstance(stack, TiledStack):
        # A cell at the same place of every tile shows something else in each, so its own components would be useless.
        without = {**first[0], "overlap": 0}
        first = [first[0], *([without] if without != first[0] else [])]
    first = [first[0], *(cells for cells in first[1:] if fits(cells | trial.most_components(cells)))]
    tried = [(parameters, *trial.cost(parameters)) for parameters in first]
    if len(first) > 1 and not isinstance(stack, TiledStack):
        # The better one of shared and own cells is tried again, with an overlap if it had none and without otherwise.
        small = [one for one in tried if one[0]["cell_shape"] == first[0]["cell_shape"]]
        better = min(small, key=lambda one: one[1])[0]
        other = {**better, "overlap": 0 if better["overlap"] else first[0]["overlap"]}
        if other not in first and fits(other | trial.most_components(other)):
            tried.append((other, *trial.cost(other)))
    chosen, cost, rank = min(tried, key=lambda one: one[1])
    words = "; ".join(f"{cells_in_words(parameters)} ({trial.in_words(spent)})" for parameters, spent, _ in tried)
    if math.isinf(cost):
        return CellChoice(first[0], f"no kind of cells reached the goal on some samples: {words}", trial.read_bytes)
    return CellChoice(
        chosen | components_of_each(rank),
        f"chosen by trials on some samples: {cells_in_words(chosen)}; tried: {words}",
        trial.read_bytes,
    )


def components_of_each(count: int) -> dict[str, Any]:
    """Return the parameters of a `CellPCA` for exactly this many components."""
    return {**dict.fromkeys(CHOICES), "max_components": None, "n_components": count}


def cells_in_words(parameters: Mapping[str, Any]) -> str:
    """Describe the cells of a `CellPCA` with these parameters."""
    shape = " x ".join(map(str, parameters["cell_shape"]))
    overlap = f", overlap {parameters['overlap']}" if parameters["overlap"] else ""
    return f"cells of {shape}{overlap}, {'shared' if parameters['shared'] else 'own'} components"


class _Trial:
    """Fits components to some samples and measures the cost of others."""

    def __init__(self, stack: Stack, goal: Goal) -> None:
        self._stack, self._goal = stack, goal
        self._guess: float | None = None
        n = stack.n_samples
        most_bytes = _READ_TILES * stack.nbytes // n if isinstance(stack, TiledStack) else _READ_BYTES
        most = max(_READ_LEAST, min(_READ_MOST, most_bytes * n // stack.nbytes))
        found = spread_runs(as_source(stack), most, RUN if n >= RUN else 1)
        if len(found) >= n - RUN:
            self._fitted = self._measured = found
            return
        # Measured runs lie between fitted ones.
        n_runs = len(found) // RUN
        measured = np.zeros(n_runs, bool)
        count = max(1, n_runs // _MEASURED_SHARE)
        measured[np.linspace(0, n_runs - 1, count + 2).round().astype(int)[1:-1]] = True
        measured = np.repeat(measured, RUN)
        self._fitted, self._measured = found[~measured], found[measured]

    @property
    def read_bytes(self) -> int:
        """Bytes of all samples that were read."""
        return self._fitted.nbytes + (0 if self._measured is self._fitted else self._measured.nbytes)

    def most_components(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a `CellPCA` for the most components that are tried with these cells."""
        cell, shape = parameters["cell_shape"], self._fitted.shape[1:]
        features, shared = math.prod((*cell, *shape[len(cell) :])), parameters["shared"]
        return components_of_each(self._at_most(features, features if shared else self._own, shared=shared))

    @property
    def _own(self) -> int:
        """Upper limit of the components of a cell, if each has its own."""
        return max(RUN, _OWN_VALUES // int(self._fitted[0].size))

    def _at_most(self, features: int, count: int, *, shared: bool) -> int:
        """Return ``count``, limited to the components that a fit of the whole stack can have in a cell."""
        return min(count, features, features if shared else self._stack.n_samples)

    def cost(self, parameters: Mapping[str, Any]) -> tuple[float, int]:
        """Return the cost of cells (infinity if they miss the goal) and the most components that one of them keeps."""
        shape, cell, overlap = self._measured.shape[1:], parameters["cell_shape"], parameters["overlap"]
        grid = LappedGrid(shape, tuple(cell), overlap) if overlap else CellGrid(shape, tuple(cell))
        facts = stated_facts(self._stack, grid, self._goal)
        components = self._components(grid, shared=parameters["shared"])
        trials = Trials(as_source(self._measured), components, facts, n_samples=self._stack.n_samples)
        if self._guess is not None and trials.margin_of(self._goal)(self._guess / _FINER) < 0:
            return math.inf, 0
        try:
            found = trials.reach(self._goal, rough=True, guess=self._guess)
        except UnmetError:
            return math.inf, 0
        if not self._goal.is_error_bound and self._goal.name != "ratio":
            self._guess = found.step
        cost = trials.mse(found) if self._goal.name == "ratio" else trials.stored_bytes(found)
        # A margin: components of a few samples differ from those of all.
        most = 4 + int(found.rank.max(initial=0)) * 5 // 4
        return cost, self._at_most(grid.max_features, most, shared=parameters["shared"])

    def in_words(self, cost: float) -> str:
        """Describe a cost."""
        if math.isinf(cost):
            return "goal not reached"
        return f"mean squared error {cost:.3g}" if self._goal.name == "ratio" else readable_size(cost)

    def _components(self, grid: CellGrid, *, shared: bool) -> Components:
        """Fit components to the samples."""
        mean, dtype = self._fitted.mean(axis=0, dtype=np.float64), working_dtype(self._fitted.dtype)
        k = max(_SHARED, math.ceil(grid.max_features / _SHARED_VALUES)) if shared else self._own
        cells, group = groups_of(grid, shared=shared)
        pooled: dict[int, Array] = {}
        rows: dict[int, Array] = {}
        for cell, values in self._filtered(grid, mean.astype(dtype)):
            if not shared:
                rows[cell] = _leading(values, k)
            else:
                product = values @ values.T
                pooled[group[cell]] = pooled[group[cell]] + product if group[cell] in pooled else product
        for g, product in pooled.items():
            rows[g] = leading_eigh(product.astype(np.float64), min(k, len(product)))[1].astype(dtype)
        if isinstance(grid, LappedGrid):
            mean = grid.prefilter.apply(mean[None], (0,) * mean.ndim)[0]
        return Components(grid, mean, group, [rows[g] for g in range(len(cells))])

    def _filtered(self, grid: CellGrid, mean: Array) -> Iterator[tuple[int, Array]]:
        """Yield each cell and its centered values (n_features, n) in the samples that are fitted."""
        length, height = grid.cell_shape[0], mean.shape[0]
        few = self._fitted[:: math.ceil(len(self._fitted) * mean.nbytes * length / height / _ROW_BYTES)]
        reach = grid.overlap if isinstance(grid, LappedGrid) else 0
        in_row = math.prod(grid.grid_shape[1:])
        width = np.subtract(*stated_range(self._stack)[::-1])
        for row, start in enumerate(range(0, height, length)):
            low, high = max(0, start - reach), min(height, start + length + reach)
            found: dict[int, list[Array]] = {}
            box = ((low, high), *((0, n) for n in mean.shape[1:]))
            for _, part, values in slabs_of(grid, box).split(few[:, low:high], mean[low:high]):
                if part.cell // in_row == row:
                    found.setdefault(part.cell, []).append(values.copy())
            for cell, parts in found.items():
                values = np.concatenate(parts, axis=1)
                if self._fitted.dtype.kind == "f":
                    # Directions do not depend on the scale. Scaled to the data range, squares cannot overflow.
                    np.ldexp(values, -math.frexp(width)[1], out=values)
                yield cell, values


def _leading(values: Array, k: int) -> Array:
    """Return the leading left singular vectors (at most k, d) of values (d, n), as rows."""
    d, n = values.shape
    if d <= n:
        return leading_eigh((values @ values.T).astype(np.float64), min(k, d))[1].astype(values.dtype)
    squares, rows = leading_eigh((values.T @ values).astype(np.float64), min(k, n))
    # In single precision, smaller squares cannot be distinguished from zero.
    there = squares > 1e-6 * squares[0]
    there[0] = True
    length = np.sqrt(squares[there, None]).clip(np.finfo(values.dtype).tiny).astype(values.dtype)
    found: Array = (rows[there].astype(values.dtype) @ values.T) / length
    return found

"""Choose the cells of a compressed store: own, shared or whole, with or without overlap, by the bytes of the store.

Components are fitted to most of a few hundred samples. The others measure how many bytes the goal takes. The store
holds each component once but scores of every sample. So cells with their own components are best if many samples show
one scene, and shared components are best if every sample is another picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpca.codec.cells import Components
from dpca.codec.goal import Goal, UnreachedError
from dpca.codec.slabs import slabs_of
from dpca.codec.waves import RUN
from dpca.engine.sources.sampling import spread_runs
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.compressed.cell_words import reasons
from dpca.jobs.compressed.encode import stated_facts
from dpca.jobs.compressed.encode_trials import Trials
from dpca.jobs.scores.transform import stated_range
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import leading_eigh
from dpca.kernels.algebra.types import Array
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.cells.rank import UnmetError
from dpca.parameters.cells import CHOICES
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import groups_of
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.markers import DoneMarkers

# The most and the fewest samples to read; in between, as many as have this many bytes. With 256 frames of a fixed
# camera, own components fit moving objects too poorly: the store has twice the bytes that it has with 512 frames.
_READ_MOST, _READ_LEAST, _READ_BYTES = 576, 3 * RUN, 2**27
# Samples to measure: as many as have this many bytes, but at least two runs, and at most one of nine runs if there are
# more samples than are read. All other samples that are read are fitted.
_MEASURED_BYTES, _MEASURED_LEAST, _MEASURED_SHARE = 2**22, 2 * RUN, 9
# Shared components are fitted to about so many cells for each of their values. More cells change less than 1 %.
_CELLS_A_VALUE = 32
# Tiles of large samples to read.
_READ_TILES = 144
# Upper limit of the bytes of a row of cells in floating point. If a row has more, fewer samples are fitted.
_ROW_BYTES = 2**27
# Upper limit of the values of all components, if each cell has its own. Shared components: this many, or a third of
# the values of a cell if that is more.
_OWN_VALUES, _SHARED, _SHARED_VALUES = 2**23, 256, 3
# Own components to begin with. More are computed if the scores of the last one exceed this many steps.
_FIRST_OWN, _WORTHLESS = 16, 0.2
# Cells whose expected bits exceed those of other cells by this share are not encoded. So many rows of at least so many
# rows of cells suffice to find those that do, if cells have their own components.
_CLEARLY_MORE, _ROWS, _OF_ROWS = 0.1, 3, 8
# From this many axes of space, cells are half as long, so that they hold about as many values as cells of images.
_MANY_AXES = 3


@dataclass(frozen=True)
class CellChoice:
    """The cells that take the fewest bytes.

    Attributes
    ----------
    parameters : dict
        Parameters of a `CellPCA`, JSON-able.
    words : list of str
        Why these, in sentences for the report.
    tried : list of dict
        The cells that were tried, and their bytes: None if they missed the goal.
    read_bytes : int
        Bytes of the samples that were read.
    """

    parameters: dict[str, Any]
    words: list[str]
    tried: list[dict[str, Any]]
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
    stack: Stack,
    model: CellPCA,
    goal: Goal,
    fits: Callable[[Mapping[str, Any]], bool] = lambda parameters: True,
    *,
    run: Run = Run(),
    kept: DoneMarkers | None = None,
) -> CellChoice:
    """Return the cells with the smallest store at equal error.

    Parameters
    ----------
    stack : Stack
    model : CellPCA
        Not fitted; as for `cells_tried`.
    goal : Goal
    fits : callable, optional
        Returns whether the memory suffices to fit the whole stack with given parameters. The first cells are tried in
        any case.
    run : Run, optional
        Only its progress is used.
    kept : DoneMarkers, optional
        Keeps the cost of each kind of cells, for a run that resumes this one.

    Raises
    ------
    DataError
        If the stack states no data range.

    Notes
    -----
    Reads at least 48 samples and at most 576, within these limits 128 MiB. Up to four kinds of cells are fitted to most
    of them. The first ones are encoded until they meet the goal, the others once, with the same mean squared error.
    Those that are expected to take many more bytes are not encoded. For n samples of d values, cells of c values and k
    components this takes O(n d (c + k)) time. Memory holds the samples, up to 128 MiB for a row of cells in floating
    point, and 2^23 values of components. If the stack has no more samples, all are fitted, and some are measured.
    """
    first = cells_tried(model, stack.sample_shape, stack.axes[1:])
    with closing(run.progress("choose cells", len(first) + 1, "kinds of cells")) as stage:
        trial = _Trial(stack, goal, kept)
        if isinstance(stack, TiledStack):
            # A cell at the same place of every tile shows something else in each, so its own components would be
            # useless.
            without = {**first[0], "overlap": 0}
            first = [first[0], *([without] if without != first[0] else [])]
        first = [first[0], *(cells for cells in first[1:] if fits(cells | trial.most_components(cells)))]
        tried: list[tuple[dict[str, Any], float, int]] = []

        def attempt(parameters: dict[str, Any]) -> None:
            tried.append((parameters, *trial.cost(parameters)))
            stage.advance(1)

        for parameters in first:
            attempt(parameters)
        if len(first) > 1 and not isinstance(stack, TiledStack):
            # The better one of shared and own cells is tried again, with an overlap if it had none and without
            # otherwise.
            small = [one for one in tried if one[0]["cell_shape"] == first[0]["cell_shape"]]
            better = min(small, key=lambda one: one[1])[0]
            other = {**better, "overlap": 0 if better["overlap"] else first[0]["overlap"]}
            if other not in first and fits(other | trial.most_components(other)):
                attempt(other)
    chosen, cost, rank = min(tried, key=lambda one: one[1])
    costs = [parameters | {"bytes": None if math.isinf(spent) else round(spent)} for parameters, spent, _ in tried]
    if math.isinf(cost):
        words = [f"no kind of cells reaches {goal.words} on some samples"]
        return CellChoice(first[0], words, costs, trial.read_bytes)
    words = reasons(chosen, cost, [one[:2] for one in tried], goal, list(stack.sample_shape))
    return CellChoice(chosen | components_of_each(rank), words, costs, trial.read_bytes)


def components_of_each(count: int) -> dict[str, Any]:
    """Return the parameters of a `CellPCA` for exactly this many components."""
    return {**dict.fromkeys(CHOICES), "max_components": None, "n_components": count}


@dataclass(frozen=True)
class _Reference:
    """The first cells that met the goal: bytes, step, mean squared error, expected bits and prices; see `Trials`."""

    size: float
    step: float
    mse: float
    bits: float
    prices: list[float]

    def more(self, prices: Array, cells: Array | slice = slice(None)) -> float:
        """Return the share of its bits by which other cells need more at equal error, from prices of some cells."""
        ours = float(np.asarray(self.prices)[cells].sum())
        more = float(prices.sum()) - ours
        return more / ours * sum(self.prices) / self.bits if ours and self.bits else 0.0


class _Trial:
    """Fits components to some samples and measures the cost of others."""

    def __init__(self, stack: Stack, goal: Goal, kept: DoneMarkers | None = None) -> None:
        self._stack, self._goal, self._kept = stack, goal, kept
        self._reference: _Reference | None = None
        n = stack.n_samples
        most_bytes = _READ_TILES * stack.nbytes // n if isinstance(stack, TiledStack) else _READ_BYTES
        most = max(_READ_LEAST, min(_READ_MOST, most_bytes * n // stack.nbytes))
        found = spread_runs(as_source(stack), most, RUN if n >= RUN else 1)
        self.read_bytes, n_runs = found.nbytes, len(found) // RUN
        least = max(_MEASURED_LEAST, len(found) * _MEASURED_BYTES // found.nbytes)
        self._fitted, self._measured = found, found
        every = len(found) >= n - RUN
        if every and least >= len(found):
            return
        runs = found.reshape(n_runs, RUN, *found.shape[1:])
        count = least // RUN if every else max(1, min(least, len(found) // _MEASURED_SHARE) // RUN)
        # Measured runs lie between fitted ones, unless all samples are fitted.
        chosen = np.linspace(0, n_runs - 1, count + 2).round().astype(int)[1:-1]
        self._measured = runs[chosen].reshape(-1, *found.shape[1:])
        if not every:
            self._fitted = np.delete(runs, chosen, axis=0).reshape(-1, *found.shape[1:])

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
        """Return the bytes of the store with these cells, and the most components that one of them keeps.

        The mean squared error is that of the first cells. If they miss the goal, the bytes are infinity.
        """
        name = f"cells {sorted(parameters.items())}"
        if self._kept is not None and self._kept.is_done(name):
            found = self._kept.record(name)
            self._reference = found["reference"] and _Reference(**found["reference"])
            return math.inf if found["size"] is None else found["size"], found["rank"]
        shape, cell, overlap = self._measured.shape[1:], parameters["cell_shape"], parameters["overlap"]
        grid = LappedGrid(shape, tuple(cell), overlap) if overlap else CellGrid(shape, tuple(cell))
        try:
            size, rank = self._encoded(grid, shared=parameters["shared"])
        except (UnmetError, UnreachedError):
            size, rank = math.inf, 0
        # A margin: components of a few samples differ from those of all.
        rank = self._at_most(grid.max_features, 4 + rank * 5 // 4, shared=parameters["shared"])
        if self._kept is not None:
            reference = None if self._reference is None else asdict(self._reference)
            kept = {"size": None if math.isinf(size) else size, "rank": rank, "reference": reference}
            self._kept.mark_done(name, record=kept)
        return size, rank

    def _encoded(self, grid: CellGrid, *, shared: bool) -> tuple[float, int]:
        """Return the bytes of the store, and the most components of a cell.

        Raises
        ------
        UnmetError, UnreachedError
            If the goal is not reached.
        """
        goal, reference = self._goal, self._reference
        if reference is not None and not (shared or goal.has_residual) and (more := self._in_some_rows(grid)):
            return (1 + more) * reference.size, 0
        trials = self._trials(grid, self._fitted, self._measured, shared=shared)
        if reference is None:
            found = trials.reach(goal, rough=True)
            size, mse, bits, prices = trials.stored_bytes(found), 0.0, 0.0, []
            if not goal.has_residual:
                known = goal.measure == "mse" and goal.is_of_samples and not goal.every_sample
                mse = goal.allowed if known else trials.mse(found)
                bits = float(trials.expected(found.step)[1].sum())
                prices = trials.prices_of(found.step).tolist()
            self._reference = _Reference(size, found.step, mse, bits, prices)
        elif goal.has_residual:
            size, found = min(trials.residual_encodings(goal), key=lambda one: one[0])
        else:
            if (more := reference.more(trials.prices_of(reference.step))) > _CLEARLY_MORE:
                return (1 + more) * reference.size, 0
            if goal.name == "ssim" or goal.every_sample:  # they differ between cells with the same mean squared error
                found = trials.reach(goal, rough=True, guess=reference.step)
            else:
                found = trials.at(trials.step_for(reference.mse, reference.step))
            size = trials.stored_bytes(found)
        return size, int(found.rank.max(initial=0))

    def _trials(self, grid: CellGrid, fitted: Array, measured: Array, *, shared: bool) -> Trials:
        components = self._components(grid, fitted, shared=shared)
        facts = stated_facts(self._stack, grid, self._goal)
        return Trials(as_source(measured), components, facts, n_samples=self._stack.n_samples)

    def _in_some_rows(self, grid: CellGrid) -> float:
        """Return the share of bits that own components need more in some rows of cells, 0 if that is not clear."""
        reference, length, n_rows = self._reference, grid.cell_shape[0], grid.sample_shape[0] // grid.cell_shape[0]
        if reference is None or len(reference.prices) != grid.n_parts or isinstance(grid, LappedGrid):
            return 0.0
        if n_rows < _OF_ROWS:
            return 0.0
        tried = np.linspace(0, n_rows - 1, _ROWS + 2).round().astype(int)[1:-1]
        lines = (tried[:, None] * length + np.arange(length)).ravel()
        some = CellGrid((len(lines), *grid.sample_shape[1:]), grid.cell_shape)
        prices = self._trials(some, self._fitted[:, lines], self._measured[:, lines], shared=False).prices_of(
            reference.step
        )
        in_row = math.prod(grid.grid_shape[1:])
        more = reference.more(prices, (tried[:, None] * in_row + np.arange(in_row)).ravel())
        return more if more > _CLEARLY_MORE else 0.0

    def _components(self, grid: CellGrid, fitted: Array, *, shared: bool) -> Components:
        """Fit components to samples."""
        mean, dtype = fitted.mean(axis=0, dtype=np.float64), working_dtype(fitted.dtype)
        k = max(_SHARED, math.ceil(grid.max_features / _SHARED_VALUES)) if shared else self._own
        cells, group = groups_of(grid, shared=shared)
        pooled: dict[int, Array] = {}
        rows: dict[int, Array] = {}
        least = 0.0 if self._reference is None else _WORTHLESS * self._reference.step * self._unit
        if shared:
            fitted = fitted[:: max(1, len(fitted) * grid.n_parts // (_CELLS_A_VALUE * grid.max_features))]
        for cell, values in self._filtered(grid, fitted, mean.astype(dtype)):
            if not shared:
                rows[cell] = _leading(values, k, least)
            else:
                product = values @ values.T
                pooled[group[cell]] = pooled[group[cell]] + product if group[cell] in pooled else product
        for g, product in pooled.items():
            rows[g] = leading_eigh(product.astype(np.float64), min(k, len(product)))[1].astype(dtype)
        if isinstance(grid, LappedGrid):
            mean = grid.prefilter.apply(mean[None], (0,) * mean.ndim)[0]
        return Components(grid, mean, group, [rows[g] for g in range(len(cells))])

    @property
    def _unit(self) -> float:
        """Factor of values. Directions do not depend on it. Scaled to the data range, squares cannot overflow."""
        if self._fitted.dtype.kind != "f":
            return 1.0
        low, high = stated_range(self._stack)
        return math.ldexp(1.0, min(-math.frexp(high - low)[1], np.finfo(self._fitted.dtype).maxexp - 8))

    def _filtered(self, grid: CellGrid, samples: Array, mean: Array) -> Iterator[tuple[int, Array]]:
        """Yield each cell and its centered values (n_features, n) in some samples."""
        length, height = grid.cell_shape[0], mean.shape[0]
        few = samples[:: math.ceil(len(samples) * mean.nbytes * length / height / _ROW_BYTES)]
        reach = grid.overlap if isinstance(grid, LappedGrid) else 0
        in_row = math.prod(grid.grid_shape[1:])
        for row, start in enumerate(range(0, height, length)):
            low, high = max(0, start - reach), min(height, start + length + reach)
            found: dict[int, list[Array]] = {}
            box = ((low, high), *((0, n) for n in mean.shape[1:]))
            for _, part, values in slabs_of(grid, box).split(few[:, low:high], mean[low:high]):
                if part.cell // in_row == row:
                    found.setdefault(part.cell, []).append(values.copy())
            for cell, parts in found.items():
                values = np.concatenate(parts, axis=1)
                if self._unit != 1:
                    values *= values.dtype.type(self._unit)
                yield cell, values


def _leading(values: Array, k: int, least: float) -> Array:
    """Return the leading left singular vectors (at most k, d) of values (d, n), as rows.

    Vectors whose products with the values have a root mean square below ``least`` may be missing.
    """
    d, n = values.shape
    by_samples = n < d
    square = (values.T @ values if by_samples else values @ values.T).astype(np.float64)
    most = min(k, len(square))
    count = min(most, _FIRST_OWN)
    squares, rows = leading_eigh(square.copy(), count)
    while count < most and squares[-1] > n * least**2:
        count = min(most, 2 * count)
        squares, rows = leading_eigh(square.copy(), count)
    if not by_samples:
        return rows.astype(values.dtype)
    # In single precision, smaller squares cannot be distinguished from zero.
    there = squares > 1e-6 * squares[0]
    there[0] = True
    length = np.sqrt(squares[there, None]).clip(np.finfo(values.dtype).tiny).astype(values.dtype)
    found: Array = (rows[there].astype(values.dtype) @ values.T) / length
    return found

"""Try one kind of cells: fit components to some samples, and find how many bytes others take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpca.codec.cells import Components
from dpca.codec.fitting import own_components, shared_components
from dpca.codec.goal import Goal, UnreachedError
from dpca.codec.waves import RUN
from dpca.engine.sources.sampling import spread_runs
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.compressed.encode import stated_facts
from dpca.jobs.compressed.encode_trials import Trials
from dpca.jobs.scores.transform import stated_range
from dpca.kernels.algebra.types import Array
from dpca.models.cells.rank import UnmetError
from dpca.parameters.cells import CHOICES, OF_CHOICES
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import groups_of
from dpca.storage.remote.tasks import run_in_blocks
from dpca.storage.stack import Stack
from dpca.storage.transaction.markers import DoneMarkers

# The most and the fewest samples to read; in between, as many as have this many bytes. With 256 frames of a fixed
# camera, own components fit moving objects too poorly: the store has twice the bytes that it has with 512 frames.
_READ_MOST, _READ_LEAST, _READ_BYTES = 576, 3 * RUN, 2**27
# Samples to measure: as many as have this many bytes, but at least two runs, and at most one of nine runs if there are
# more samples than are read. All other samples that are read are fitted.
_MEASURED_BYTES, _MEASURED_LEAST, _MEASURED_SHARE = 2**22, 2 * RUN, 9
# Shared components are fitted to about so many cells for each of their values. Twice as many take 3 to 5 % fewer bytes,
# with and without an overlap.
_CELLS_A_VALUE = 24
# Tiles of large samples to read.
_READ_TILES = 144
# Upper limit of the values of all components, if each cell has its own. Shared components: this many, or a third of
# the values of a cell if that is more.
_OWN_VALUES, _SHARED, _SHARED_VALUES = 2**23, 256, 3
# Own components with smaller scores, in steps, may be missing.
_WORTHLESS = 0.2
# Cells are not encoded if their expected bytes exceed the fewest so far by this share: if they are expected from some
# cells, or if the goal is one that cells with the same mean squared error meet differently.
_MORE_IN_SOME, _MORE_AT_GOALS = 0.05, 0.25
# Parts of the mean that are computed at the same time.
_PARTS = 4
# So many cells, of at least so many, are tried before all cells are, if they have their own components.
_CELLS, _OF_CELLS = 16, 32
# Components of whole samples are first fitted to every third value along each axis of space, if there are at least so
# many values for each fitted sample. They are discarded if their least error exceeds the allowed one by this factor.
_THINNED, _VALUES_A_SAMPLE, _TOO_LARGE = 3, 8, 1.5


def components_of_each(count: int) -> dict[str, Any]:
    """Return the parameters of a `CellPCA` for exactly this many components."""
    return {**dict.fromkeys((*CHOICES, *OF_CHOICES)), "n_components": count}


@dataclass(frozen=True)
class _Reference:
    """The first cells that met the goal: bytes, those not of components, step, expected errors and bits of each cell.

    See `dpca.codec.expected.ExpectedCost`.
    """

    size: float
    fixed: float
    step: float
    errors: list[float]
    bits: list[float]

    def encoded(self, trials: Trials, cells: Sequence[int] | None = None) -> tuple[float, float, int]:
        """Return the bytes, step and rank of other cells with the same expected error.

        Parameters
        ----------
        trials : Trials
        cells : sequence of int, optional
            The cells that the trials have instead of all cells.

        Raises
        ------
        UnreachedError
            If the other cells have no step with the same error.
        """
        errors, bits = np.array(self.errors), np.array(self.bits)
        some = slice(None) if cells is None else np.array(cells)
        step = trials.expected_step(errors[some].sum() / math.prod(trials.source.shape[1:]), self.step)
        found = trials.expectation.at(step)
        times = float(found.bits.sum() / bits[some].sum()) if bits[some].any() else 1.0
        return self.fixed + times * (self.size - self.fixed), step, found.rank


class CellTrial:
    """Fits components to some samples and measures the cost of others."""

    def __init__(self, stack: Stack, goal: Goal, kept: DoneMarkers | None, beside: ThreadPoolExecutor) -> None:
        self._stack, self._goal, self._kept, self._beside = stack, goal, kept, beside
        self._reference: _Reference | None = None
        self._begun: dict[tuple[CellGrid, bool], Future[Trials | None]] = {}
        self._least = math.inf
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

    def is_kept(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether an earlier run has tried these cells."""
        return self._kept is not None and self._kept.is_done(_name_of(parameters))

    def cost(self, parameters: Mapping[str, Any]) -> tuple[float, int]:
        """Return the bytes of the store with these cells, and the most components that one of them keeps.

        The mean squared error is that of the first cells. If they miss the goal, the bytes are infinity.
        """
        name = _name_of(parameters)
        if self._kept is not None and self.is_kept(parameters):
            found = self._kept.record(name)
            self._reference = found["reference"] and _Reference(**found["reference"])
            size, rank = math.inf if found["size"] is None else found["size"], found["rank"]
            self._least = min(size, self._least)
            return size, rank
        grid = self._grid(parameters)
        try:
            size, rank = self._encoded(grid, shared=parameters["shared"])
        except (UnmetError, UnreachedError):
            size, rank = math.inf, 0
        self._least = min(size, self._least)
        # A margin: components of a few samples differ from those of all.
        rank = self._at_most(grid.max_features, 4 + rank * 5 // 4, shared=parameters["shared"])
        if self._kept is not None:
            reference = None if self._reference is None else asdict(self._reference)
            kept = {"size": None if math.isinf(size) else size, "rank": rank, "reference": reference}
            self._kept.mark_done(name, record=kept)
        return size, rank

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Begin to fit cells in another thread: shared ones, or a part of others if the goal states an error."""
        grid, shared = self._grid(parameters), parameters["shared"]
        if (grid, shared) in self._begun:
            return
        if shared:
            begun: Future[Trials | None]
            begun = self._beside.submit(self._trials, grid, self._fitted, self._measured, shared=True)
            self._begun[grid, shared] = begun
        elif self._error_of_goal is not None:
            self._begun[grid, shared] = self._beside.submit(self._in_part, grid)

    def close(self) -> None:
        """Cancel what has not begun."""
        for begun in self._begun.values():
            begun.cancel()

    def _grid(self, parameters: Mapping[str, Any]) -> CellGrid:
        shape, cell, overlap = self._measured.shape[1:], parameters["cell_shape"], parameters["overlap"]
        return LappedGrid(shape, tuple(cell), overlap) if overlap else CellGrid(shape, tuple(cell))

    def _encoded(self, grid: CellGrid, *, shared: bool) -> tuple[float, int]:
        """Return the bytes of the store, and the most components of a cell.

        Raises
        ------
        UnmetError, UnreachedError
            If the goal is not reached.
        """
        goal, reference = self._goal, self._reference
        bounded = goal.has_residual
        begun = self._begun.pop((grid, shared), None)
        if reference is not None and not (shared or bounded):
            part = self._in_part(grid) if begun is None else begun.result()
            if part is not None and (size := self._expected_in_part(reference, grid, part)):
                return size, 0
        whole = begun.result() if begun is not None and shared else None
        trials = whole or self._trials(grid, self._fitted, self._measured, shared=shared)
        if reference is None:
            found = trials.reach(goal, rough=True)
            size, expected = trials.stored_bytes(found), None if bounded else trials.expectation.at(found.step)
            errors, bits = ([], []) if expected is None else (expected.errors.tolist(), expected.bits.tolist())
            self._reference = _Reference(size, trials.fixed_bytes(found), found.step, errors, bits)
            if not bounded:
                for cells, fitting in self._begun.items():
                    if cells[1]:
                        self._begun[cells] = self._beside.submit(_expecting, fitting, self._reference)
        elif bounded:
            size, found = min(trials.residual_encodings(goal), key=lambda one: one[0])
        else:
            size, step, rank = reference.encoded(trials)
            if size > (1 + self._margin) * self._least or (shared and not self._margin):
                return size, rank
            found = trials.reach(goal, rough=True, guess=step) if self._margin else trials.at(step)
            size = trials.stored_bytes(found)
        return size, int(found.rank.max(initial=0))

    @property
    def _margin(self) -> float:
        """Share by which expected bytes may exceed the fewest so far, before cells are discarded."""
        return _MORE_AT_GOALS if self._goal.name == "ssim" or self._goal.every_sample else 0.0

    def _trials(self, grid: CellGrid, fitted: Array, measured: Array, *, shared: bool) -> Trials:
        components = self._components(grid, fitted, shared=shared)
        facts = stated_facts(self._stack, grid, self._goal)
        return Trials(as_source(measured), components, facts, n_samples=self._stack.n_samples)

    def _in_part(self, grid: CellGrid) -> Trials | None:
        """Return trials of own components in some values of whole samples, or of some cells; None if all are tried."""
        if grid.n_parts == 1:
            some = (slice(None), *[slice(None, None, _THINNED)] * grid.n_spatial)
            fitted, measured = (np.ascontiguousarray(samples[some]) for samples in (self._fitted, self._measured))
            if fitted[0].size < _VALUES_A_SAMPLE * len(fitted):
                return None
            part = CellGrid(fitted.shape[1:], fitted.shape[1 : 1 + grid.n_spatial])
        elif tried := _some_cells(grid):
            boxes = [tuple(slice(*ends) for ends in grid.box(cell)) for cell in tried]
            # The cells are stacked along the first axis.
            fitted, measured = (
                np.concatenate([samples[:, *box] for box in boxes], axis=1)
                for samples in (self._fitted, self._measured)
            )
            part = CellGrid(fitted.shape[1:], grid.cell_shape)
        else:
            return None
        return self._trials(part, fitted, measured, shared=False)

    def _expected_in_part(self, reference: _Reference, grid: CellGrid, part: Trials) -> float:
        """Return the bytes of own components as expected from a part of them, 0 if they may be the fewest.

        Raises
        ------
        UnreachedError
            If components of whole samples cannot have the expected error in some of the values. The components that are
            best there have the least error. In all values it is expected to be at least as large.
        """
        if grid.n_parts == 1:
            n_values = math.prod(part.source.shape[1:])
            allowed = _TOO_LARGE * sum(reference.errors) * n_values / self._fitted[0].size
            if part.expectation.least_error > allowed:
                raise UnreachedError
            return 0.0
        if len(reference.bits) != grid.n_parts:
            return 0.0
        size = reference.encoded(part, _some_cells(grid))[0]
        return size if size > (1 + max(_MORE_IN_SOME, self._margin)) * self._least else 0.0

    def _components(self, grid: CellGrid, fitted: Array, *, shared: bool) -> Components:
        """Fit components to samples."""
        if shared:
            k = max(_SHARED, math.ceil(grid.max_features / _SHARED_VALUES))
            count = min(len(fitted), math.ceil(_CELLS_A_VALUE * grid.max_features / grid.n_parts))
            some = fitted[np.linspace(0, len(fitted) - 1, count).round().astype(int)]
            group = groups_of(grid, shared=True)[1]
            return shared_components(grid, group, self._mean, some, k, self._unit)
        mean = self._mean if fitted is self._fitted else fitted.mean(axis=0, dtype=np.float64)
        return own_components(grid, mean, fitted, self._own, self._unit, _WORTHLESS * self._least_step * self._unit)

    @property
    def _least_step(self) -> float:
        """A lower limit of the steps. If the goal states no mean squared error, it is that of the first cells."""
        if (error := self._error_of_goal) is None:
            return 0.0 if self._reference is None else self._reference.step
        low, high = stated_range(self._stack)
        return math.sqrt(12 * error) * (high - low)  # the error of rounding alone

    @property
    def _error_of_goal(self) -> float | None:
        """The mean squared error that the goal allows, in units of the squared width; None if it states none."""
        goal = self._goal
        return goal.allowed if goal.measure == "mse" and goal.is_of_samples else None

    @cached_property
    def _mean(self) -> Array:
        def mean_of(some: slice) -> Array:
            found: Array = self._fitted[:, some].mean(axis=0, dtype=np.float64)
            return found

        # Both threads wait for it.
        height = self._fitted.shape[1]
        return np.concatenate(run_in_blocks(mean_of, height, math.ceil(height / _PARTS)))

    @property
    def _unit(self) -> float:
        """Factor of values. Directions do not depend on it. Scaled to the data range, squares cannot overflow."""
        if self._fitted.dtype.kind != "f":
            return 1.0
        low, high = stated_range(self._stack)
        return math.ldexp(1.0, min(-math.frexp(high - low)[1], np.finfo(self._fitted.dtype).maxexp - 8))


def _expecting(begun: Future[Trials | None], reference: _Reference) -> Trials | None:
    """Return trials that have estimated the bytes with the expected error, so that asking for them takes no time."""
    if (trials := begun.result()) is not None:
        reference.encoded(trials)
    return trials


def _some_cells(grid: CellGrid) -> list[int]:
    """Return the cells to try before all cells are, none if all are tried at once."""
    whole = [i for i in range(grid.n_parts) if math.prod(b - a for a, b in grid.box(i)) == grid.max_features]
    if len(whole) < _OF_CELLS or isinstance(grid, LappedGrid):
        return []
    return [whole[i] for i in np.linspace(0, len(whole) - 1, _CELLS + 2).round().astype(int)[1:-1]]


def _name_of(parameters: Mapping[str, Any]) -> str:
    """Return the name of the marker of some cells."""
    return f"cells {sorted(parameters.items())}"

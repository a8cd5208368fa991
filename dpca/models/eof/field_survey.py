"""The survey of a field: means, trends, variances and gaps of all grid points, in a pass by blocks of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.engine.folds.plan import FoldPlan
from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks, box_around
from dpca.models.base.attribute_blocks import attribute_blocks
from dpca.models.base.mapped import mapped_array, release
from dpca.models.base.passes import Passes
from dpca.models.eof.on_grid import is_large
from dpca.partition.cells import CellGrid
from dpca.rules.covariance.survey import NUMBERS, Survey, numbered, survey_of
from dpca.storage.errors import DataError, PlanError
from dpca.storage.run import Run

# Grid points of one regression.
_REGRESSED = 2**20


class SurveySource(ComputedSource):
    """Input of `dpca.rules.covariance.survey.Survey`: flattened blocks of samples with their numbers, NaN if missing.

    ::

        one block        x0 x1 x2 x3 x4 x5  n n
        blocks of 4      x0 x1 x2 x3  n n  x4 x5 x4 x4  n n

    The numbers follow each block of grid points, so that a block does without the others. A smaller block at the end of
    an axis is filled up with its first value.

    Parameters
    ----------
    source : Source
    shift : array (*sample_shape)
        Is subtracted from every sample.
    grid : CellGrid
        The blocks of grid points.
    """

    with_gaps = True

    def __init__(self, source: Source, shift: Array, grid: CellGrid) -> None:
        self.grid, self.part_length = grid, grid.max_features + NUMBERS
        shape = (source.shape[0], grid.n_parts * self.part_length)
        super().__init__(source, shape, working_dtype(source.dtype))
        self.shift, self.corner = shift, (0,) * shift.ndim
        self.chunks = (self.chunks[0], self.part_length)

    @property
    def parts(self) -> CellGrid:
        """The parts of this source: one for each block."""
        return CellGrid(self.shape[1:], (self.part_length,))

    def needed(self, region: Region) -> Region:
        """Return the box of the grid points of some blocks."""
        return box_around([self.grid.box(i) for i in self._blocks(region)])

    def _blocks(self, region: Region) -> range:
        return range(region[0][0] // self.part_length, math.ceil(region[0][1] / self.part_length))

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, with the shift of its grid points only."""
        cut, box = copy(self), self.needed(region)
        cut.shift, cut.corner = self.shift[_within(box, self.corner)], tuple(a for a, _ in box)
        return super(SurveySource, cut).piece(samples, region)

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box. It always contains whole blocks."""
        if values.dtype.kind == "f" and np.isinf(values).any():
            number = samples[0] + int(np.isinf(values).reshape(len(values), -1).any(axis=1).argmax())
            raise DataError(
                f"sample {number} of {self.name} contains an infinite value: mask the value or remove the sample"
            )
        corner = [a for a, _ in self.needed(region)]
        for turn, i in enumerate(self._blocks(region)):
            box, part = self.grid.box(i), out[:, turn * self.part_length : (turn + 1) * self.part_length]
            length = self.grid.n_features(i)
            own = values[:, *_within(box, corner)].reshape(len(values), length)
            numbered(own, first, part)
            part[:, :length] -= self.shift[_within(box, self.corner)].ravel().astype(out.dtype)
            part[:, length:-NUMBERS] = part[:, :1]  # misses nothing else than the block


def _within(box: Region, corner: Sequence[int]) -> tuple[slice, ...]:
    """Return the place of a box in an array that begins at a corner."""
    return tuple(slice(a - c, b - c) for (a, b), c in zip(box, corner, strict=True))


@dataclass(frozen=True, eq=False)
class _Joined(ResultWriter):
    """Puts the results of blocks together in this process, one group after the other."""

    grid: CellGrid
    n_samples: int
    arrays: dict[str, Array] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    in_tasks: ClassVar[bool] = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of a `summary`."""
        return self.n_samples

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Copy the results of a block, and return which samples have no value there."""
        box, length = self.grid.box(part), self.grid.n_features(part)
        summary, lengths = self.summary(result), [b - a for a, b in box]
        for name in result.keys() - summary.keys():
            values = result[name][..., :length]
            rows = values.shape[:-1]
            with self.lock:  # tasks of several threads end at the same time
                if name not in self.arrays:
                    self.arrays[name] = self._created((*rows, *self.grid.sample_shape), values.dtype)
            whole, place = self.arrays[name], tuple(slice(a, b) for a, b in box)
            whole[(*(slice(None) for _ in rows), *place)] = values.reshape(*rows, *lengths)
            release(whole)
        return summary

    def _created(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array in memory, or in a file if the field is large."""
        if not is_large(math.prod(self.grid.sample_shape)):
            return np.empty(shape, dtype)
        return mapped_array(shape, dtype, "the statistics of grid points")

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return which samples have no value in a block."""
        return {"empty": result["empty"]}


def survey(source: Source, rule: Survey, shift: Array, run: Run, stage: str) -> dict[str, Array]:
    """Return the statistics of all grid points, see `dpca.rules.covariance.survey`, from a pass by blocks of them.

    ``shift`` (*sample_shape) are values near those of the samples. Results have one axis for all grid points. ``slope``
    is missing without a trend.
    """
    passes = Passes(source, run)
    grid = _survey_blocks(passes, rule, shift)
    surveyed, writer = SurveySource(source, shift, grid), _Joined(grid, source.shape[0])
    parts = passes.over(surveyed.parts, rule, stage=stage, writer=writer, source=surveyed)
    there = ~np.logical_and.reduce([part["empty"] > 0 for part in parts])
    # The regression replaces the sums.
    found = {name: values.reshape(*values.shape[: -shift.ndim], -1) for name, values in writer.arrays.items()}
    names = {"level": "sums", "variance": "squares", "slope": "along"}
    regression, flat = named_errors(survey_of, source.name), shift.ravel()
    for columns in blocks(shift.size, _REGRESSED):
        own = {name: values[..., columns] for name, values in found.items()}
        for name, values in regression(own, rule.groups, rule.trend, there, flat[columns], rule.weights).items():
            if names[name] in own:
                own[names[name]][:] = values
                release(own[names[name]])
    results = {name: found[old] for name, old in names.items() if old in found}
    return results | {"there": there, "count": found["count"], "run": found["run"]}


def _survey_blocks(passes: Passes, rule: Survey, shift: Array) -> CellGrid:
    """Return the blocks of grid points: all in one, unless the field is large or does not fit into a task."""

    def planned(grid: CellGrid) -> FoldPlan:
        source = SurveySource(passes.source, shift, grid)
        return passes.plan(source.parts, rule, _Joined(grid, source.shape[0]), source)

    if not is_large(shift.size):
        try:
            planned(whole := CellGrid(shift.shape, shift.shape))
            return whole
        except PlanError:
            pass
    return attribute_blocks(rule, passes, planned=planned)

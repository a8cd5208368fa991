"""Values for the gaps of cells, from the components with which the cells are encoded.

The codes of a cell are smallest if its gaps have the values that its components expect, given its other values. A cell
without any value gets its mean, whose scores are 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.codec.cells import Components
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.gaps import BLOCK_ROWS, LowRank, filled_rows
from dpca.partition.cells import CellGrid

# Most components of a cell, the first ones, and most bytes of the products of all pairs of them. Others would take
# memory, and change little.
_MOST, _PAIR_BYTES = 32, 2**22
# Bytes of temporary arrays of the cells that are expected together, and of each of them for a pair of its components
# and for a value (measured: less).
_ROW_BYTES, _OF_SQUARES, _OF_VALUES = 2**23, 48, 32


def cell_filling_bytes(n: int, sample_shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of temporary arrays of `CellFilling.filled` for n samples, with the result, at most."""
    values = math.prod(sample_shape)
    return n * values * (3 * itemsize + 2) + max(_ROW_BYTES, _OF_VALUES * values) + 3 * _PAIR_BYTES


@dataclass(frozen=True, eq=False)
class CellFilling:
    """Fills the missing values, NaN, of samples in cells without overlap.

    Parameters
    ----------
    grid : CellGrid
    mean : array (*sample_shape,)
    group : array (n_cells,) of integers
        Group of each cell: the cells of a group share their components.
    models : sequence of LowRank
        The model of each group, with a mean of 0.
    """

    grid: CellGrid
    mean: Array
    group: Array
    models: Sequence[LowRank]

    @classmethod
    def of(cls, components: Components, explained: Sequence[Array], totals: Sequence[float]) -> CellFilling:
        """Return the filling by some components, given the variances along those of each group, and in total."""
        models = []
        for rows, values, total in zip(components.rows, explained, totals, strict=True):
            d = rows.shape[1]
            few = max(1, min(_MOST, len(rows), math.isqrt(_PAIR_BYTES // (4 * d))))
            # A group without components has one of length 0.
            some = rows[:few] if len(rows) else np.zeros((1, d), rows.dtype)
            variances = np.asarray(values)[:few] if len(rows) else np.zeros(1)
            models.append(LowRank.of(some, variances, float(total), np.zeros(d)))
        return cls(components.grid, components.offset, components.group, models)

    def filled(self, samples: Array) -> Array:
        """Return samples (n, *sample_shape) without NaN."""
        found = samples.copy()
        waiting: dict[int, list[tuple[int, Array, Array]]] = {}
        for cell, at, values in self._gappy(samples):
            absent, mean = np.isnan(values), self.mean[at].ravel()
            empty = absent.all(axis=1)
            found[(empty, *at)] = self.mean[at]
            partly = np.flatnonzero(absent.any(axis=1) & ~empty)
            if not len(partly):
                continue
            group = int(self.group[cell])
            some = waiting.setdefault(group, [])
            some.append((cell, partly, values[partly] - mean))
            if sum(len(rows) for _, rows, _ in some) >= self._rows(group):
                self._expect(group, waiting.pop(group), found)
        for group, some in waiting.items():
            self._expect(group, some, found)
        return found

    def _gappy(self, samples: Array) -> Iterator[tuple[int, tuple[slice, ...], Array]]:
        """Yield the cells with missing values: their number, their place, and their values (n, n_features)."""
        some = np.asarray(np.isnan(samples).any(axis=0))
        for cell in range(self.grid.n_parts):
            at = tuple(slice(*ends) for ends in self.grid.box(cell))
            if some[at].any():
                yield cell, at, samples[(slice(None), *at)].reshape(len(samples), -1)

    def _expect(self, group: int, some: list[tuple[int, Array, Array]], found: Array) -> None:
        """Fill cells of a group, given without their means."""
        rows, model, end = np.concatenate([values for _, _, values in some]), self.models[group], 0
        expected = [filled_rows(model, rows[few], None, rows.dtype)[0] for few in blocks(len(rows), self._rows(group))]
        filled = np.concatenate(expected)
        for cell, samples, values in some:
            box = self.grid.box(cell)
            at = tuple(slice(*ends) for ends in box)
            begin, end = end, end + len(values)
            mine = filled[begin:end].reshape(len(values), *(b - a for a, b in box)) + self.mean[at]
            for sample, one in zip(samples, mine, strict=True):
                place = found[sample][at]
                np.copyto(place, one, where=np.isnan(place))

    def _rows(self, group: int) -> int:
        """Number of cells of a group that are expected together."""
        k, d = self.models[group].components.shape
        return min(BLOCK_ROWS, max(1, _ROW_BYTES // (_OF_SQUARES * k**2 + _OF_VALUES * d)))

    @property
    def arrays(self) -> dict[str, Array]:
        """What `from_arrays` reads, with `facts`."""
        found = {"mean": self.mean, "group": self.group}
        for g, model in enumerate(self.models):
            found |= {f"components_{g}": model.components, f"variances_{g}": model.variances}
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers that are no arrays."""
        return {"cell_shape": list(self.grid.cell_shape), "noise": [model.noise for model in self.models]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> CellFilling:
        """Return the filling with these `arrays` and `facts`."""
        models = []
        for g, noise in enumerate(facts["noise"]):
            rows = arrays[f"components_{g}"]
            models.append(LowRank(rows, arrays[f"variances_{g}"], np.zeros(rows.shape[1]), noise))
        return cls(CellGrid(arrays["mean"].shape, tuple(facts["cell_shape"])), arrays["mean"], arrays["group"], models)

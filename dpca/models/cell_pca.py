"""CellPCA: one principal component analysis for each cell of a stack of images or volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpca.engine.source import Source
from dpca.kernels.types import Array, Region
from dpca.models.docs import PARTITIONED, documented
from dpca.models.parameters import spatial_lengths
from dpca.models.partitioned import PartitionedPCA
from dpca.models.rank_choice import RankChoice
from dpca.models.store import Kept, StoredModel
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole
from dpca.storage.layout import axes_for


@documented(**PARTITIONED, part="cell", parts="cells", grid="*grid_shape")
@dataclass(eq=False, repr=False, kw_only=True)
class CellPCA(PartitionedPCA):
    """Principal component analysis of every cell of an image or volume stack (Alakkari 2020, section 4.3; 6.4.3).

    A sample is cut into cells, blocks of neighboring pixels with all their channels; each cell of the grid gets its own
    mean and components from all samples, in one pass: its covariance is accumulated chunk by chunk, then decomposed.
    Edge cells have the true remaining size. Values are analyzed in the units of the input; integers are never copied
    whole to floating point.

    With ``shared=True`` all cells of one shape share their components, and only the means are each cell's own. That
    takes more components for the same error, but one covariance for each shape of cell (whole cells, and up to 3 shapes
    at the edges of images, 7 of volumes) instead of one for each cell, in memory as in a store: large cells become
    affordable.

    Parameters
    ----------
    {n_components}
    cell_shape : int or tuple of int
        Cell length along each spatial axis, one integer for all of them. A tuple also says which axes are spatial: its
        length counts them, axes after those are channels. With an integer, a last axis of length 4 or less behind two
        or more others is taken for channels.
    overlap : int
        Pixels on each side of a border between cells that are mapped across it before the analysis, at least 2 and at
        most half of a cell, against edges of cells in reconstructions; 0 for none. The map is orthogonal
        (:class:`~dpca.partition.prefilter.Prefilter`): nothing is stored twice, and all certificates stay exact.
    shared : bool
        Whether all cells of one shape share their components: the eigenvectors of the average of their covariances,
        each about the cell's own mean. Of all components used in every place, these leave the least squared error. A
        shared component counts at each of its places, and is kept in all of them or in none.
    {choices}
    random_state : int, RandomState or None
        Seed of the samples that a target is met on. An integer lets a fit that was stopped go on.
    {memory_budget}
    {flatten}
    {keep_state}

    Attributes
    ----------
    {components}
        Shared components are repeated at each of their places. With an overlap all this holds for the cells of the
        filtered components (``grid_.prefilter.apply``), whereas ``components_`` itself, like ``mean_``, is of samples:
        components of neighbors reach into each other and are summed there. In either case ``components_[j]`` is what
        scores of 1 for component j in every cell add to the mean.
    {attributes}
    grid_ : CellGrid
        A `LappedGrid` with an overlap.

    Notes
    -----
    {costs}
    Shared components take one read and one covariance for each shape of cell, and are refused where these do not fit.
    Their ``explained_variance_`` and ``total_variance_`` are averages over the cells of that shape, since the variance
    of one cell's scores would take a second pass; the average error of these cells, and the error of the whole sample,
    are exact.

    For 8-bit integers the covariances are exact, so the result does not depend on chunks, order or workers at all;
    not with an overlap, whose filtered values are floating-point numbers. Filtering costs a few multiplications a
    pixel, and the reading and copying of the pixels around the cells that a task holds. Variances of a lapped cell are
    those of the cell of the filtered samples; summed over all cells they are those of the samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import CellPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (100, 20, 30, 3), dtype=np.uint8)
    >>> model = CellPCA(5, cell_shape=10).fit(images)
    >>> model.transform(images).shape
    (100, 2, 3, 5)
    """

    store_kind: ClassVar[str] = "cell-pca"
    # Models with an overlap or shared components: programs that know of none must not read them as without. Those
    # without are of version 1.
    store_version: ClassVar[int] = 2
    part_name: ClassVar[str] = "cell"
    report_title: ClassVar[str] = "Cell PCA"
    scores_kind: ClassVar[str] = CellGrid.scores_kind

    cell_shape: int | tuple[int, ...]
    overlap: int = 0
    shared: bool = False

    # -- what the cells are

    def _partition(self, source: Source, axes: Sequence[str] | None, **running: Any) -> CellGrid:
        sample_shape, overlap = tuple(source.shape[1:]), self.overlap
        if not is_whole(overlap):
            raise DataError(f"overlap is {overlap!r}: give a number of pixels, an integer")
        cell = self.cells_for(axes or axes_for(sample_shape))
        try:
            return LappedGrid(sample_shape, cell, int(overlap)) if overlap else CellGrid(sample_shape, cell)
        except ValueError as error:
            raise DataError(str(error)) from error

    def _folded(self, partition: CellGrid) -> Partition:
        return SharedGrid(partition) if self.shared else partition

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Any) -> int | None:
        # With the samples of many places, shared components may be more than there are samples.
        return super()._to_compute(choice, None if self.shared else n, partition)

    def _most_components(self, partition: CellGrid) -> tuple[int, str]:
        return partition.max_features, f"a cell of {partition.cell_shape}"

    def _n_spatial(self, partition: CellGrid, axes: Sequence[str]) -> int:
        return partition.n_spatial

    def _name_of(self, place: tuple[int, ...]) -> str:
        return "cell" + "_".join(map(str, place))

    @property
    def grid_(self) -> CellGrid:
        """The cells."""
        grid: CellGrid = self.partition_
        return grid

    # -- what jobs and reports ask

    def cells_for(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the cell length along each spatial axis of samples whose axes have these names.

        Raises
        ------
        DataError
            If ``cell_shape`` gives none, or an axis of channels is not the last one.
        """
        return spatial_lengths(self.cell_shape, "cell_shape", axes)

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted to samples whose axes have these names."""
        return f"{' x '.join(map(str, self.cells_for(axes)))} cells"

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        numbers = super().report_numbers() | {"cells": self.grid_.n_partitions, "cell_shape": self.grid_.cell_shape}
        return numbers | {name: value for name in ("overlap", "shared") if (value := getattr(self, name))}

    def pictured_components(self, count: int) -> Array:
        """Return the first components, those of every cell in place (count, *sample_shape)."""
        rows = super().pictured_components(count).copy()
        if isinstance(self.grid_, LappedGrid):
            # Each cell's own, whose signs are free: as samples they are summed with those of neighbors.
            self.grid_.prefilter.apply(rows, (0,) * (rows.ndim - 1))
        return rows

    # -- keeping

    def _kept(self) -> Kept:
        grid, axes = self.grid_, axes_for(self.sample_shape_)
        grid_axes = tuple(f"cell_{i}" for i in range(grid.n_spatial))
        components = {}
        for name, boxes in _places(grid, bool(self.shared)):
            # Cells of a shape have lengths of their own along the axes of space, which take the number of the shape.
            of_shape = name.removeprefix("components")
            own = (*(f"{axis}{of_shape}" for axis in axes[: grid.n_spatial]), *axes[grid.n_spatial :])
            components[name] = (self.components_[_at(boxes[0])], ("component", *own))
        arrays = {
            "mean": (self.mean_, axes),
            **components,
            "explained_variance": (self.explained_variance_, (*grid_axes, "component")),
            "total_variance": (self.total_variance_, grid_axes),
            **self._state_arrays(),
        }
        facts = self._facts(cell_shape=list(grid.cell_shape))
        overlap, shared = getattr(grid, "overlap", 0), {"shared": True} if self.shared else {}
        beside = {"overlap": overlap, **shared} if overlap or shared else {}
        later = [{name: facts[name]} for name in ("flatten", "state") if name in facts]
        identity = [facts["cell_shape"], self.n_samples_seen_, *beside.values(), *later]
        return Kept(arrays, facts | beside, self.store_version if beside else 1, identity)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, shape, k = stored.facts, stored.sample_shape, stored.n_components
        cell = tuple(map(int, facts["cell_shape"]))
        overlap, shared = (0, False) if facts["version"] == 1 else (int(facts["overlap"]), facts.get("shared", False))
        if not isinstance(shared, bool):
            raise ValueError(f"shared is {shared!r}")
        grid = LappedGrid(shape, cell, overlap) if overlap else CellGrid(shape, cell)
        places = _places(grid, shared)
        shapes = {name: (k, *(stop - start for start, stop in boxes[0])) for name, boxes in places}
        arrays = stored.arrays(shapes | cls._shapes(shape, grid.grid_shape, k))
        if "components" not in arrays:
            arrays["components"] = np.empty((k, *shape), arrays["components_0"].dtype)
            for name, boxes in places:
                for box in boxes:
                    arrays["components"][_at(box)] = arrays[name]
        # All components were asked for by None, which also fits where there are more of them than samples.
        model = cls(None if k == grid.max_features else k, cell_shape=cell, overlap=overlap, shared=shared)
        model._learned_parts(grid, arrays, stored.n_samples)
        model._remember(stored)
        return model


def _at(box: Region) -> tuple[slice, ...]:
    """Return what selects a box of all components."""
    return (slice(None), *(slice(*ends) for ends in box))


def _places(grid: CellGrid, shared: bool) -> list[tuple[str, list[Region]]]:
    """Return the names of the arrays of components, and where in a sample each is: at several places if it is shared.

    With an overlap components reach into each other, in ways that differ at edges, and are kept as they lie.
    """
    if not shared or isinstance(grid, LappedGrid):
        return [("components", [tuple((0, length) for length in grid.sample_shape)])]
    return [(f"components_{g}", [grid.box(i) for i in cells]) for g, cells in enumerate(SharedGrid(grid).cells)]

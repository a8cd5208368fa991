"""CellPCA: one principal component analysis for each cell of a stack of images or volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region
from dpca.models.base.component_model import ON_DISK
from dpca.models.base.docs import PARTITIONED, documented
from dpca.models.base.parameters import check_parameters, spatial_lengths
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.models.cells.rank_choice import RankChoice
from dpca.models.gaps.parts_with_gaps import PartsWithGaps
from dpca.parameters.cells import CellParameters
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid, groups_of
from dpca.representation.cell_runs import squared_lengths
from dpca.storage.arrays.layout import CHANNEL, MOST_CHANNELS, axes_for, count_spatial, is_channel
from dpca.storage.errors import DataError
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run


@documented(**PARTITIONED, part="cell", parts="cells", grid="*grid_shape")
class CellPCA(CellParameters, PartsWithGaps, PartitionedPCA):
    """Principal component analysis of each cell of an image or volume stack (Alakkari 2020, sections 4.3 and 6.4.3).

    Each sample is divided into cells, blocks of neighboring pixels with all their channels. Each cell has its own mean
    and components from all samples. One pass accumulates the covariances chunk by chunk, then they are decomposed.
    Cells at the edges are smaller if the cell length does not divide the image. Values are analyzed in the units of the
    input. Integers are converted to floating point in blocks, never as a whole.

    With ``shared=True`` all cells of the same shape share their components; only the means differ. This requires more
    components for the same error. In return there is one covariance for each cell shape (whole cells, and up to 3
    shapes at the edges of images, 7 of volumes) instead of one for each cell, in memory and in a store. Use it for
    large cells.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {components}
        Shared components are repeated in each of their cells. With an overlap, the above applies to the cells of the
        filtered components (``grid_.prefilter.apply``). ``components_`` and ``mean_`` are in the space of samples:
        components of neighboring cells overlap and are added there. In both cases ``components_[j]`` is the sum of
        component j of all cells.
    {attributes}
    grid_ : CellGrid
        A `LappedGrid` if there is an overlap.
    held_out_rmse_ : float
        Root mean squared error of held-out values. Exists only after a fit to samples with missing values.

    Notes
    -----
    {costs}
    Shared components require one read and one covariance for each cell shape. If whole samples do not fit into the
    memory of a task, it reads a block of cells. `PlanError` is raised if the covariances do not fit. Their
    ``explained_variance_`` and ``total_variance_`` are averages over the cells of that shape, because the variances of
    the scores of single cells would require a second pass. The average error of these cells and the error of the whole
    sample are exact.

    For 8-bit integers the covariances are exact: the result does not depend on chunks, order or workers. This does not
    hold with an overlap, because filtered values are floating-point numbers. Filtering costs a few multiplications per
    pixel, and each task reads and copies the pixels around its cells. With an overlap, variances of a cell refer to the
    filtered samples. Their sum over all cells is the variance of the samples.

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
    # Version 2 has an overlap or shared components. Earlier versions of dpca would ignore both, so they must reject
    # such a store. Models without either are stored as version 1, and those with weights as their own version.
    store_version: ClassVar[int] = 2
    any_weights: ClassVar[bool] = True
    part_name: ClassVar[str] = "cell"
    report_title: ClassVar[str] = "Cell PCA"
    scores_kind: ClassVar[str] = CellGrid.scores_kind
    required_with_gaps: ClassVar[dict[str, Any]] = {**PartsWithGaps.required_with_gaps, "overlap": 0, "shared": False}

    # -- the partition

    def _partition(self, source: Source, axes: Sequence[str] | None, run: Run) -> CellGrid:
        check_parameters(self)
        sample_shape, overlap = tuple(source.shape[1:]), self.overlap
        cell = self._cell_of(self._named(axes, source.shape), sample_shape)
        if isinstance(self.cell_shape, int | np.integer):
            cell = tuple(map(min, cell, sample_shape))
        try:
            return LappedGrid(sample_shape, cell, int(overlap)) if overlap else CellGrid(sample_shape, cell)
        except ValueError as error:
            raise DataError(str(error)) from error

    # -- cells

    def _cell_of(self, axes: Sequence[str], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the cell lengths along the first axes. Along an axis of channels before these, a cell has its length.

        Raises
        ------
        DataError
            If there are too few lengths, and the remaining axes are not channels.
        """
        at = next((i for i, name in enumerate(axes[:-1]) if is_channel(name)), None)
        spatial = [name for i, name in enumerate(axes) if i != at]
        cell = self.cell_shape_for(spatial)
        if at is not None and len(cell) == count_spatial(spatial):
            return (*cell[:at], shape[at], *cell[at:])
        rest = zip(axes[len(cell) :], shape[len(cell) :], strict=True)
        if any(length > MOST_CHANNELS and name != CHANNEL for name, length in rest):
            raise DataError(
                f"cell_shape is {self.cell_shape!r}, but samples of {shape} have the axes {', '.join(axes)}: give a "
                f"length for each, or name the axis of channels, such as axes='tczyx'"
            )
        return cell

    def _folded(self, partition: CellGrid) -> Partition:
        return SharedGrid(partition) if self.shared else partition

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Any) -> int | None:
        # Shared components have the samples of many cells, so there may be more components than samples.
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

    # -- jobs and reports

    def cell_shape_for(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the cell length along each spatial axis, given the names of the axes of a sample.

        Raises
        ------
        DataError
            If ``cell_shape`` does not match the axes, or the channel axis is not the last one.
        """
        return spatial_lengths(self.cell_shape, "cell_shape", axes)

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit for logs, given the names of the axes of a sample."""
        return f"{' x '.join(map(str, self.cell_shape_for(axes)))} cells"

    @property
    def ranks_(self) -> Array:
        """Number of retained components of each part, integers (*grid_shape). Surplus rows are zero."""
        if not self.shared:
            return super().ranks_
        cells, group = groups_of(self.grid_, shared=True)
        found = [self.grid_.part_of(self.components_, members[0]) for members in cells]
        return np.array([(squared_lengths(rows) > 0.5).sum() for rows in found])[group].reshape(self.grid_.grid_shape)

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        numbers = super().report_numbers() | {"cells": self.grid_.n_parts, "cell_shape": self.grid_.cell_shape}
        return numbers | {name: value for name in ("overlap", "shared") if (value := getattr(self, name))}

    def component_maps(self, count: int) -> Array:
        """Return the first components (count, *sample_shape), each cell at its position."""
        rows = super().component_maps(count)
        if isinstance(self.grid_, LappedGrid):
            rows = np.array(rows)
            # Show the filtered components: in samples, overlapping components with arbitrary signs are added up.
            with one_blas_thread():  # its products are too small for several threads
                self.grid_.prefilter.apply(rows, (0,) * (rows.ndim - 1))
        return rows

    # -- stores

    def _to_store(self) -> StoreContents:
        grid, axes = self.grid_, axes_for(self.sample_shape_)
        grid_axes = tuple(f"cell_{i}" for i in range(grid.n_spatial))
        components = {}
        for name, boxes in [] if self._on_disk else _places(grid, bool(self.shared)):
            # Each cell shape has its own lengths along the spatial axes, so these dims carry the number of the shape.
            of_shape = name.removeprefix("components")
            own = (*(f"{axis}{of_shape}" for axis in axes[: grid.n_spatial]), *axes[grid.n_spatial :])
            components[name] = (self.components_[_at(boxes[0])], ("component", *own))
        facts = self._facts(cell_shape=list(grid.cell_shape))
        overlap, shared = getattr(grid, "overlap", 0), {"shared": True} if self.shared else {}
        beside = {"overlap": overlap, **shared} if overlap or shared or self._is_weighted else {}
        later = [{name: facts[name]} for name in ("state", "parameters") if name in facts]
        identity = [facts["cell_shape"], self.n_samples_seen_, *beside.values(), *later]
        version = self._version_of(self.store_version if beside else 1)
        return StoreContents(self._stored_arrays(grid_axes, components), facts | beside, version, identity)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, shape, k = stored.facts, stored.sample_shape, stored.n_components
        cell = tuple(map(int, facts["cell_shape"]))
        overlap, shared = (0, False) if facts["version"] == 1 else (int(facts["overlap"]), facts.get("shared", False))
        if not isinstance(shared, bool):
            raise ValueError(f"shared is {shared!r}: the metadata allows true and false")
        grid = LappedGrid(shape, cell, overlap) if overlap else CellGrid(shape, cell)
        places = _places(grid, shared and not facts.get(ON_DISK))
        shapes = {name: (k, *(stop - start for start, stop in boxes[0])) for name, boxes in places}
        shapes |= cls._shapes(shape, grid.grid_shape, k)
        arrays: dict[str, Any] = {}
        if facts.get(ON_DISK):
            arrays = {name: stored.array_on_disk(name, shapes.pop(name)) for name in ("mean", "components")}
        arrays |= stored.arrays(shapes)
        if "components" not in arrays:
            arrays["components"] = np.empty((k, *shape), arrays["components_0"].dtype)
            for name, boxes in places:
                for box in boxes:
                    arrays["components"][_at(box)] = arrays[name]
        return cls._restored(stored, grid, arrays, cell_shape=cell, overlap=overlap, shared=shared)


def _at(box: Region) -> tuple[slice, ...]:
    """Return the index of a box in the array of all components."""
    return (slice(None), *(slice(*ends) for ends in box))


def _places(grid: CellGrid, shared: bool) -> list[tuple[str, list[Region]]]:
    """Return the names of the component arrays and the boxes of a sample that each applies to, several if shared.

    With an overlap, components overlap, differently at the edges, so there is one array of the whole sample.
    """
    if not shared or isinstance(grid, LappedGrid):
        return [("components", [tuple((0, length) for length in grid.sample_shape)])]
    return [(f"components_{g}", [grid.box(i) for i in cells]) for g, cells in enumerate(SharedGrid(grid).cells)]

"""CellPCA: one principal component analysis for each cell of a stack of images or volumes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dpca.engine.plan import Partitioned
from dpca.engine.source import Source
from dpca.models.partitioned import PartitionedPCA
from dpca.models.rank_choice import RankChoice
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid
from dpca.representation.cell_basis import CellBasis
from dpca.representation.lapped_basis import LappedBasis
from storage.errors import DataError
from storage.layout import CHANNEL, axes_for

Array = NDArray[Any]


class CellPCA(PartitionedPCA):
    """Principal component analysis of every cell of an image or volume stack (T 4.3; T 6.4.3 for volumes).

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
    n_components : int, "marchenko-pastur" or None
        Components of each cell; None keeps all; "marchenko-pastur" those whose variance noise of one level does not
        explain (Veraart et al. 2016). An edge cell with fewer attributes keeps all of its own.
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
        each about the cell's own mean. Of all components used in every place, these leave the least squared error.
    threshold : float, optional
        Instead of ``n_components``: each cell keeps the fewest components that explain more than this share of its
        variance (T 4.1), at most ``max_components``.
    total_components : int, optional
        Instead: so many components in all, spread over the cells to leave the least squared error. A shared component
        counts at each of its places, and is kept in all of them or in none.
    ratio : float, optional
        Instead: as many components in all as make so many attributes into one score, spread likewise: attributes of a
        sample, divided by this and rounded to an integer.
    target_mse, target_psnr : float, optional
        Instead: the fewest components, spread likewise, whose mean squared error is at most this, of values scaled so
        that ``data_range`` has length 1, or whose peak signal-to-noise ratio of that error is at least this, in dB,
        before values are rounded to pixels. Met on the samples of the fit unless ``validation_fraction`` is given.
        It follows from the eigenvalues, without a second pass; exactly, unless cells were folded by incremental SVD,
        whose error is at most what they say.
    target_ssim : float, optional
        Instead: the fewest components, spread likewise, whose mean SSIM (uniform windows of 7 pixels a side, values
        rounded and clipped to pixels) is at least this. It is searched on 500 samples spread over the stack, of those
        that ``validation_fraction`` leaves out where it is given, which are read once and held in memory with their
        scores; on fewer where these would take more than half of ``memory_budget``.
    validation_fraction : float, optional
        Share of the samples, at most .5, that is left out of the fit, and on which a target is met instead: what
        ``target_mse`` and ``target_psnr`` promise then holds for samples that the fit did not see, which the components
        of few samples fit worse. At most 10,000 samples, spread over the stack by ``random_state``; they are read once
        more, a twentieth of a large stack at most.
    max_components : int, optional
        Bound on the components of each cell where their numbers differ, and how many are computed. Default four times
        the mean, or a third of the attributes where no mean is asked for; a `RankWarning` says where that is too few.
    data_range : tuple of float, optional
        Smallest and largest possible value, for the targets; default that of the stack or of the integer type.
    random_state : int, RandomState or None
        Seed of the samples that a target is met on. An integer lets a fit that was stopped go on.
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.

    Attributes
    ----------
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        Component j of every cell at the cell's place: ``components_[j]`` looks like a sample. Rows of a cell are
        orthonormal, ordered by variance; the entry of largest magnitude is positive. Shared components are repeated at
        each of their places. With an overlap all this holds for the cells of the filtered components
        (``grid_.prefilter.apply``), whereas ``components_`` itself, like ``mean_``, is of samples: components of
        neighbors reach into each other and are summed there. In either case ``components_[j]`` is what scores of 1 for
        component j in every cell add to the mean.
    mean_ : array (*sample_shape), float64
    explained_variance_ : array (*grid_shape, n_components), float64
        Variance of the scores, in squared units of the input (divisor n - 1). Where components are shared, the average
        over the cells of that shape: the variance of one cell's scores would take a second pass.
    explained_variance_ratio_ : array (*grid_shape, n_components), float64
        The same divided by the cell's total variance; 0 where a cell is constant.
    total_variance_ : array (*grid_shape), float64
        Certificate: (total - sum explained) (n - 1) / n is exactly the squared error of a cell, summed over its
        attributes and averaged over the samples of the fit; where incremental SVD was used, the error is at most that.
        Where components are shared, this too is an average over the cells of that shape, and their average error, and
        the error of the whole sample, are exact.
    singular_values_ : array (*grid_shape, n_components), float64
    ranks_ : array (*grid_shape), int
        Components that each cell keeps; its rows of ``components_`` beyond are zero.
    target_reached_ : float
        Value of the target's measure on the samples that it was met on; only where there is a target.
    target_standard_error_ : float
        Its standard error, by how much these samples differ; 0 for the squared error of the samples of the fit.
    validation_samples_ : array of int
        Numbers of the samples that were left out of the fit, ascending; only with ``validation_fraction``.
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    grid_ : CellGrid
        A `LappedGrid` with an overlap.
    fit_report_ : FoldReport
        Plan, seconds, peak memory; ``note`` says in a sentence what was folded, and how often the stack was read.

    Notes
    -----
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process. Costs O(n d) reads and O(n d c) arithmetic for cells of c attributes, and memory for the
    covariances of the cells that a task holds, which the planner bounds before anything runs. Cells whose covariances
    do not fit the memory budget together take turns; a chunk that such groups share is decoded for each of them. Where
    this would be more than 8 reads of the stack, or one covariance alone is too much (a cell of c attributes takes 8
    c**2 bytes), every cell is folded by incremental SVD instead, if that needs fewer reads by that factor. Shared
    components take one read and one such covariance for each shape of cell, and are refused where these do not fit.

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

    part_name: ClassVar[str] = "cell"
    scores_kind: ClassVar[str] = CellBasis.scores_kind

    def __init__(
        self,
        n_components: int | str | None = None,
        *,
        cell_shape: int | tuple[int, ...],
        overlap: int = 0,
        shared: bool = False,
        threshold: float | None = None,
        total_components: int | None = None,
        ratio: float | None = None,
        target_mse: float | None = None,
        target_psnr: float | None = None,
        target_ssim: float | None = None,
        validation_fraction: float | None = None,
        max_components: int | None = None,
        data_range: tuple[float, float] | None = None,
        random_state: Any = None,
        memory_budget: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.cell_shape = cell_shape
        self.overlap = overlap
        self.shared = shared
        self.threshold = threshold
        self.total_components = total_components
        self.ratio = ratio
        self.target_mse = target_mse
        self.target_psnr = target_psnr
        self.target_ssim = target_ssim
        self.validation_fraction = validation_fraction
        self.max_components = max_components
        self.data_range = data_range
        self.random_state = random_state
        self.memory_budget = memory_budget

    # -- what the cells are

    def _partition(self, source: Source, axes: Sequence[str] | None, **running: Any) -> CellGrid:
        sample_shape, overlap = tuple(source.shape[1:]), self.overlap
        if isinstance(overlap, bool) or not isinstance(overlap, int | np.integer):
            raise DataError(f"overlap is {overlap!r}: give a number of pixels, an integer")
        cell = self.cells_for(axes or axes_for(sample_shape))
        try:
            return LappedGrid(sample_shape, cell, int(overlap)) if overlap else CellGrid(sample_shape, cell)
        except ValueError as error:
            raise DataError(str(error)) from error

    def _folded(self, partition: CellGrid) -> Partitioned:
        return SharedGrid(partition) if self.shared else partition

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Any) -> int | None:
        # With the samples of many places, shared components may be more than there are samples.
        return super()._to_compute(choice, None if self.shared else n, partition)

    def _basis_of(self, partition: CellGrid, mean: Array, components: Array) -> CellBasis:
        if isinstance(partition, LappedGrid):
            return LappedBasis(partition, mean, components)
        return CellBasis(partition, mean, components, bool(self.shared))

    def _checked_components(self, n: int | None, partition: CellGrid) -> int | None:
        return self._checked_count(
            n, partition.max_features, f"a cell of {partition.cell_shape}", "choose larger cells"
        )

    def _n_spatial(self, partition: CellGrid, axes: Sequence[str]) -> int:
        return partition.n_spatial

    def _name_of(self, place: tuple[int, ...]) -> str:
        return "cell" + "_".join(map(str, place))

    def restore(
        self,
        partition: CellGrid,
        components: Array,
        mean: Array,
        explained_variance: Array,
        total_variance: Array,
        n_samples: int,
    ) -> None:
        """Set the learned attributes from what a store holds or a fit found."""
        super().restore(partition, components, mean, explained_variance, total_variance, n_samples)
        self.grid_ = partition

    @property
    def basis_(self) -> CellBasis:
        """The mean and the components with their grid: what tasks are sent."""
        check_is_fitted(self, "components_")
        return cast("CellBasis", self._basis)

    # -- what jobs and reports ask

    def cells_for(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the cell length along each spatial axis of samples whose axes have these names.

        Raises
        ------
        DataError
            If ``cell_shape`` gives none, or an axis of channels is not the last one.
        """
        return spatial_cell(self.cell_shape, axes)

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

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group; see `load`."""
        from dpca.models.cell_store import save_model

        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; nothing in it is executed.

        Raises
        ------
        StoreError
            If there is no such model, or it comes from a newer version.
        """
        from dpca.models.cell_store import load_model

        return cast("Self", load_model(path))


def spatial_cell(cell_shape: int | tuple[int, ...], axes: Sequence[str]) -> tuple[int, ...]:
    """Return the cell length along each spatial axis of samples whose axes have these names.

    Raises
    ------
    DataError
        If an axis of channels is not the last one.
    """
    if CHANNEL in axes[:-1]:
        raise DataError(f"the axes of a sample are {tuple(axes)}: channels must come last, move that axis first")
    if isinstance(cell_shape, int | np.integer):
        return (int(cell_shape),) * sum(axis != CHANNEL for axis in axes)
    if not isinstance(cell_shape, Sequence) or not all(isinstance(c, int | np.integer) for c in cell_shape):
        raise DataError(f"cell_shape is {cell_shape!r}: give one integer, or one for each spatial axis")
    return tuple(int(c) for c in cell_shape)

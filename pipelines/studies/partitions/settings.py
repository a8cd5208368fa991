"""What a partition report is asked for, and what follows for a stack: which partitions, how many components. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpca.models.base.parameters import checked_rank
from dpca.partition.cells import CellGrid
from dpca.pipelines.studies.partitions.published import DATA_SETS
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.errors import DataError

#: Pixels of the cells of Alakkari 2020, table 4.2: squares of 5, 10 and 25.
_CELL_PIXELS = (25, 100, 625)
#: Attributes of a band, intervals of the mean, samples that estimate moments (Alakkari 2020, section 4.5.3).
_BAND_SIZE = 1875
_FEWEST_BANDS = 4
#: Components of whole samples unless told otherwise, where there are as many and memory allows.
USUAL_HOLISTIC = 200


@dataclass(frozen=True)
class PartitionSettings:
    """What determines the report, beside the stack.

    Parameters
    ----------
    cells : tuple of (int or tuple of int), optional
        Cell length along each spatial axis, of each size that is compared; a length beyond the sample's is cut to it.
        Default: cells of 25, 100 and 625 pixels, which are the thesis's squares of 5, 10 and 25 where there are two
        spatial axes.
    ratio : float
        Attributes to one score: it says how many components every cell keeps, and every band of full size.
    holistic : int, optional
        Components of whole samples; default 200, or as many as the samples and the memory of a task allow.
    band_size : int, optional
        Most attributes of a band; default 1,875, or a quarter of a sample where that is less.
    band_components : int, optional
        Components of a band; default by ``ratio``.
    n_intervals : int
        Intervals of the mean.
    estimating : tuple of int
        Samples that means and variances are estimated from, beside all of them.
    train_fraction : float, optional
        Share of the samples that is fitted, 0 < share < 1; the others are only measured. Default: all are fitted, none
        is held out.
    evaluate : int or None
        Most samples whose reconstructions are measured, of the training samples and of those held out, each spread over
        all of them; None for all.
    seed : int
        Of the samples that are held out and measured, of estimating subsets and of random bands.
    compare : {"none", "lfw", "celeba"}
        Whose published numbers stand beside these.
    """

    cells: tuple[int | tuple[int, ...], ...] | None = None
    ratio: float = 15.0
    holistic: int | None = None
    band_size: int | None = None
    band_components: int | None = None
    n_intervals: int = 50
    estimating: tuple[int, ...] = (100, 1000)
    train_fraction: float | None = None
    evaluate: int | None = 1000
    seed: int = 0
    compare: str = "none"


@dataclass(frozen=True)
class Design:
    """The same for one stack, every default filled in.

    Attributes
    ----------
    n_samples, n_held_out : int
        Of the stack, and how many of them are not fitted.
    cells : tuple of tuple of int
        Cells of different sizes, the smallest first.
    components : tuple of int
        Components of each.
    holistic, band_size, band_components : int
    estimating : tuple of int
        Ascending, all below the number of training samples.
    has_channels : bool
        Whether the last axis of a sample holds channels.
    """

    n_samples: int
    n_held_out: int
    cells: tuple[tuple[int, ...], ...]
    components: tuple[int, ...]
    holistic: int
    band_size: int
    band_components: int
    estimating: tuple[int, ...]
    has_channels: bool

    @property
    def n_training(self) -> int:
        """Samples that are fitted."""
        return self.n_samples - self.n_held_out

    @property
    def middle(self) -> int:
        """Which of the cell sizes stands for cells where only one does: the second of three."""
        return len(self.cells) // 2


def design(settings: PartitionSettings, n_samples: int, sample_shape: tuple[int, ...], axes: tuple[str, ...]) -> Design:
    """Say what will be compared on a stack.

    Parameters
    ----------
    settings : PartitionSettings
    n_samples : int
    sample_shape : tuple of int
    axes : tuple of str
        Names of the axes of one sample.

    Raises
    ------
    DataError
        For invalid settings, or a stack of too few samples.
    """
    check(settings)
    held_out = 0 if settings.train_fraction is None else n_samples - round(settings.train_fraction * n_samples)
    n = n_samples - held_out
    if n < 2 or (settings.train_fraction is not None and held_out < 1):
        raise DataError(
            f"{n_samples:,} samples leave {n:,} to fit and {held_out:,} to hold out: give a stack, and a train "
            f"fraction, that leave at least 2 and 1"
        )
    d, n_spatial = math.prod(sample_shape), count_cut(axes)
    if settings.holistic is not None:
        checked_rank(settings.holistic, d, n)
    cells = _cells(settings.cells, sample_shape[:n_spatial])
    channels = math.prod(sample_shape[n_spatial:])
    # A band of fewer attributes than a pixel has could not keep them together.
    size = settings.band_size or max(channels, min(_BAND_SIZE, d // _FEWEST_BANDS))

    return Design(
        n_samples=n_samples,
        n_held_out=held_out,
        cells=cells,
        components=tuple(_components(CellGrid(sample_shape, cell), settings.ratio, n) for cell in cells),
        holistic=settings.holistic or max(1, min(USUAL_HOLISTIC, n - 1, d)),
        band_size=min(size, d),
        band_components=settings.band_components or max(1, min(int(min(size, d) / settings.ratio), n)),
        estimating=tuple(sorted(count for count in set(settings.estimating) if count < n)),
        has_channels=n_spatial < len(axes),
    )


def _components(grid: CellGrid, ratio: float, n: int) -> int:
    """Return the most components that leave ``ratio`` attributes to one score; smaller cells keep at most all."""
    sizes, counts = np.unique([grid.n_features(i) for i in range(grid.n_partitions)], return_counts=True)
    kept = np.minimum(np.arange(1, sizes[-1] + 1)[:, None], sizes) @ counts
    most = int(np.searchsorted(kept, math.prod(grid.sample_shape) / ratio, side="right"))
    return max(1, min(most, n))


def count_cut(axes: Sequence[str]) -> int:
    """Return how many of the axes of a sample are cut into cells: those of space, or the only one."""
    return max(1, count_spatial(axes))


def _cells(given: Sequence[int | tuple[int, ...]] | None, spatial: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    sizes = given or [round(pixels ** (1 / len(spatial))) for pixels in _CELL_PIXELS]
    found = set()
    for size in sizes:
        lengths = (size,) * len(spatial) if isinstance(size, int) else size
        if len(lengths) != len(spatial) or min(lengths) < 1:
            raise DataError(
                f"a cell of {lengths} does not cut samples of {spatial}: give one positive length, or one for each of "
                f"the {len(spatial)} spatial axes"
            )
        found.add(tuple(min(cell, length) for cell, length in zip(lengths, spatial, strict=True)))
    return tuple(sorted(found, key=lambda cell: (math.prod(cell), cell)))


def check(settings: PartitionSettings) -> None:
    """Reject settings that are invalid for any stack, by a `DataError`."""
    if not settings.ratio >= 1:
        raise DataError(f"ratio is {settings.ratio}: it is attributes to one score, at least 1")
    share = settings.train_fraction
    if share is not None and not 0 < share < 1:
        raise DataError(f"train_fraction is {share}: give a share of the samples above 0 and below 1, or leave it out")
    if any(count < 2 for count in settings.estimating):
        raise DataError(f"estimating is {settings.estimating}: a variance takes at least 2 samples")
    if settings.evaluate is not None and settings.evaluate < 1:
        raise DataError(f"evaluate is {settings.evaluate}: measure at least 1 sample, or all of them")
    if settings.compare not in DATA_SETS:
        raise DataError(f"compare is {settings.compare!r}: give one of {', '.join(DATA_SETS)}")

"""Settings of a partition report, and the partitions and numbers of components for a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpca.cli.arguments import cell_lengths, positive
from dpca.models.base.parameters import checked_rank
from dpca.partition.cells import CellGrid
from dpca.pipelines.studies.partitions.published import DATA_SETS
from dpca.pipelines.studies.programs import option, seed_option
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.errors import DataError

#: Pixels of the cells of Alakkari 2020, table 4.2: squares of 5, 10 and 25.
_CELL_PIXELS = (25, 100, 625)
#: Attributes of a band (Alakkari 2020, section 4.5.3).
_BAND_SIZE = 1875
_FEWEST_BANDS = 4
#: Default number of components of whole samples, if the samples and the memory allow it.
USUAL_HOLISTIC = 200


def _all_or_positive(text: str) -> int | None:
    return None if text == "all" else positive(text)


@dataclass(frozen=True)
class PartitionSettings:
    """Everything that determines the report, beside the stack. `option` states each field and its option."""

    cells: tuple[int | tuple[int, ...], ...] | None = option(
        None,
        "cell lengths in pixels to compare; a length beyond the sample's is cut to it (default: 5 10 25 for images; "
        "cells of about 25, 100 and 625 entries for volumes and vectors)",
        "N[xM[xL]]",
        parse=cell_lengths,
        nargs="+",
    )
    ratio: float = option(
        15.0, "attributes for each score; determines the components of cells and bands", "R", parse=float
    )
    holistic: int | None = option(
        None,
        "components of whole samples (the thesis: 1000; default: 200, or fewer if samples or memory require it)",
        "K",
    )
    band_size: int | None = option(
        None, "most attributes of a band (default: 1875, or a quarter of a sample if that is less)", "L"
    )
    band_components: int | None = option(None, "components of a band (default: by the ratio)", "K")
    n_intervals: int = option(50, "number of intervals of the mean", "S", flag="intervals")
    estimating: tuple[int, ...] = option(
        (100, 1000),
        "numbers of samples to estimate means and variances from, beside all of them (default: 100 1000)",
        nargs="*",
    )
    train_fraction: float | None = option(
        None,
        "fit this share of the samples, spread over all, and measure the others, too (default: fit all)",
        "F",
        parse=float,
    )
    evaluate: int | None = option(
        1000,
        "number of samples to reconstruct and compare, of training samples and of held-out ones, spread over the "
        "stack, or 'all'",
        parse=_all_or_positive,
    )
    seed: int = seed_option("seed of held-out and measured samples, of estimating samples, and of random bands")
    compare: str = option(
        "none", "show the thesis's numbers of this data set beside ours", None, parse=str, choices=DATA_SETS
    )


@dataclass(frozen=True)
class Design:
    """Settings for one stack, without defaults.

    Attributes
    ----------
    n_samples, n_held_out : int
        Samples of the stack, and held-out samples among them.
    cells : tuple of tuple of int
        Cells of different sizes, the smallest first.
    components : tuple of int
        Components of each cell.
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
        """Number of training samples."""
        return self.n_samples - self.n_held_out

    @property
    def middle(self) -> int:
        """Index of the cell size in tables with only one: the second of three."""
        return len(self.cells) // 2


def design(settings: PartitionSettings, n_samples: int, sample_shape: tuple[int, ...], axes: tuple[str, ...]) -> Design:
    """Return what is compared on a stack.

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
            f"{n_samples:,} samples leave {n:,} to fit and {held_out:,} to hold out: at least 2 and 1 are required, "
            f"use more samples or another train fraction"
        )
    d, n_spatial = math.prod(sample_shape), count_cut(axes)
    if settings.holistic is not None:
        checked_rank(settings.holistic, d, n)
    cells = _cells(settings.cells, sample_shape[:n_spatial])
    channels = math.prod(sample_shape[n_spatial:])
    # The channels of a pixel stay together, so a band has at least as many attributes.
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
    """Return the most components with at least ``ratio`` attributes per score; smaller cells keep all of theirs."""
    sizes, counts = np.unique([grid.n_features(i) for i in range(grid.n_parts)], return_counts=True)
    kept = np.minimum(np.arange(1, sizes[-1] + 1)[:, None], sizes) @ counts
    most = int(np.searchsorted(kept, math.prod(grid.sample_shape) / ratio, side="right"))
    return max(1, min(most, n))


def count_cut(axes: Sequence[str]) -> int:
    """Return the number of axes of a sample that are cut into cells: the spatial ones, or the only one."""
    return max(1, count_spatial(axes))


def _cells(given: Sequence[int | tuple[int, ...]] | None, spatial: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    sizes = given or [round(pixels ** (1 / len(spatial))) for pixels in _CELL_PIXELS]
    found = set()
    for size in sizes:
        lengths = (size,) * len(spatial) if isinstance(size, int) else size
        if len(lengths) != len(spatial) or min(lengths) < 1:
            raise DataError(
                f"a cell of {lengths} does not fit samples of {spatial}: use one positive length, or one for each of "
                f"the {len(spatial)} spatial axes"
            )
        found.add(tuple(min(cell, length) for cell, length in zip(lengths, spatial, strict=True)))
    return tuple(sorted(found, key=lambda cell: (math.prod(cell), cell)))


def check(settings: PartitionSettings) -> None:
    """Raise `DataError` for settings that are invalid for any stack."""
    if not settings.ratio >= 1:
        raise DataError(f"ratio is {settings.ratio}: use at least 1 attribute for each score")
    share = settings.train_fraction
    if share is not None and not 0 < share < 1:
        raise DataError(f"train_fraction is {share}: use a share above 0 and below 1, or none")
    if any(count < 2 for count in settings.estimating):
        raise DataError(f"estimating is {settings.estimating}: a variance requires at least 2 samples")
    if settings.evaluate is not None and settings.evaluate < 1:
        raise DataError(f"evaluate is {settings.evaluate}: measure at least 1 sample, or all of them")
    if settings.compare not in DATA_SETS:
        raise DataError(f"compare is {settings.compare!r}: use one of {', '.join(DATA_SETS)}")

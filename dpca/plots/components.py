"""Components as images, the components of cells in place, and maps of the number of components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from dpca.engine.sources.source import as_dense
from dpca.kernels.algebra.types import Array
from dpca.models import EOF
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, WIDTH
from dpca.plots.given import integers, is_model, model_given, shares_for, shares_of
from dpca.plots.layouts import tiles
from dpca.plots.overviews import LARGE_BYTES, overview, thinned
from dpca.plots.panels import Blend, align_signs, by_sign, extent_of, panel
from dpca.representation.linear import in_boxes
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.labelled import coordinates_of, is_labelled
from dpca.storage.arrays.layout import CHANNEL, axes_for, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

_SHOWN, _OF_CELLS = 12, 8
_MARGIN, _SCALE, _HIGHEST_MAP = 0.08, 0.9, 4.2


def eigenimages(
    model: Any,
    n_components: int | None = None,
    *,
    axes: Sequence[str] | None = None,
    explained_variance_ratio: ArrayLike | None = None,
) -> Figure:
    """Draw the first components as images, all on one scale.

    Parameters
    ----------
    model : fitted estimator, path, or array (k, H, W), (k, H, W, C), (k, z, y, x[, C]) or (k, L)
        A model with components, or components. Of a volume the middle slice is shown. Components with one axis are
        drawn as curves. NaN is a missing value.
    n_components : int, optional
        Number of components; the default is 12, or all if there are fewer.
    axes : sequence of str, optional
        Names of a sample's axes, as in `dpca.storage.open_stack`; by default a last axis of length 4 or less has
        channels.
    explained_variance_ratio : array_like (k,), optional
        Shares of the variance, shown next to the index; the default is those of the model.

    Returns
    -------
    matplotlib.figure.Figure
        Zero is white, positive values are red, negative values are blue. In color images zero is gray, and positive
        values make a channel brighter. Channels with colors, such as those of OME-Zarr, are added up in these. The
        scale at the foot gives the magnitude of full color, the 99.5th percentile of all magnitudes.

    Raises
    ------
    DataError
        If the model has no components to show, or fewer than ``n_components``.
    """
    return _drawn(_components(model, n_components, _SHOWN, axes, explained_variance_ratio))


def cell_eigenvectors(
    model: Any,
    n_components: int | None = None,
    *,
    cell_shape: int | Sequence[int] | None = None,
    axes: Sequence[str] | None = None,
    explained_variance_ratio: ArrayLike | None = None,
) -> Figure:
    """Draw the first eigenvectors of every cell or band in place.

    Parameters
    ----------
    model : fitted CellPCA or BandPCA, path of one, or array (k, *sample_shape)
        An array has the eigenvectors of all cells in place.
    n_components : int, optional
        Number of components; the default is 8, or all if there are fewer.
    cell_shape : int or sequence of int, optional
        Spatial shape of the cells of an array. The sign of each cell's eigenvector, which is arbitrary, is chosen to
        agree with the neighbors.
    axes, explained_variance_ratio
        As in `eigenimages`.

    Returns
    -------
    matplotlib.figure.Figure
        In the colors of `eigenimages`.

    Raises
    ------
    DataError
        As in `eigenimages`.
    """
    return _drawn(_components(model, n_components, _OF_CELLS, axes, explained_variance_ratio), cell_shape=cell_shape)


def rank_map(ranks: Any, *, axes: Sequence[str] | None = None) -> Figure:
    """Draw a map of the number of components; darker is more.

    Parameters
    ----------
    ranks : fitted CellPCA or BandPCA, path of one, or array_like of the shape of a sample, integers
        Number of components of each attribute's cell or band. Of a volume the middle slice is shown. Samples with one
        axis are drawn as a line.
    axes : sequence of str, optional
        Names of the sample's axes, as in `eigenimages`.

    Raises
    ------
    DataError
        If the model has no cells or bands.
    """
    values = panel(*(_ranks_in_place(model_given(ranks), axes) if is_model(ranks) else (ranks, axes)))
    if values.ndim == 1:
        figure, chart = drawing.chart("attribute", "components kept")
        chart.plot(values, color=ACCENT, linewidth=1.2, drawstyle="steps-mid")
        chart.set_ylim(0, max(values.max(), 1) * 1.05)
        chart.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
        return figure
    # Channels differ if they are in different bands.
    values = thinned(values if values.ndim == 2 else values.mean(axis=-1))
    aspect = drawing.aspect_of(values)
    width = min(WIDTH - 2 * _MARGIN - _SCALE, _HIGHEST_MAP / aspect)
    figure, _ = drawing.page(width * aspect + 2 * _MARGIN)
    place = ((WIDTH - _SCALE - width) / 2, _MARGIN, width, width * aspect)
    ticks = MaxNLocator(integer=True, nbins=6, min_n_ticks=1)
    drawing.show_colored(figure, values, place, drawing.FEW_TO_MANY, bar=(0.15, 0.14), ticks=ticks)
    return figure


def _ranks_in_place(model: Any, axes: Sequence[str] | None) -> tuple[Array, Sequence[str] | None]:
    """Return the rank of the part that each attribute belongs to, in the shape of a sample, and the names of its axes.

    Of large samples, there is one for each cell.
    """
    if not isinstance(model, PartitionedPCA):
        raise DataError(f"{type(model).__name__} has no cells or bands: give a CellPCA or a BandPCA")
    partition = model.partition_
    if isinstance(partition, LappedGrid):
        partition = partition.plain
    if math.prod(partition.sample_shape) * 8 > LARGE_BYTES and isinstance(partition, CellGrid):
        return model.ranks_.reshape(partition.grid_shape), None if axes is None else axes[: partition.n_spatial]
    ranks = enumerate(model.ranks_.flat)
    values = ((i, np.full((1, 1, partition.n_features(i)), rank)) for i, rank in ranks)
    placed: Array = partition.join(values, np.empty((1, *partition.sample_shape), np.int64))[0]
    return placed, axes


@dataclass(frozen=True)
class _Components:
    """Components (k, *sample_shape), names of a sample's axes, and how they are drawn."""

    values: Array
    axes: Sequence[str] | None
    shares: Array | None
    cells: Sequence[int] | None
    along: Coordinates | None
    """The coordinates along the axes of a sample, if they are known."""

    @property
    def colors(self) -> list[str] | None:
        """Colors of the channels, if they are known."""
        names = self.axes or axes_for(self.values.shape[1:])
        found = None if self.along is None or names[-1] != CHANNEL else self.along.channel_colors
        return found if found and len(found) == self.values.shape[-1] else None

    def upright(self, picture: Array) -> Array:
        """Return a picture of a component with the north at the top."""
        leading = max(0, count_spatial(self.axes or axes_for(self.values.shape[1:])) - 2)
        flipped = () if self.along is None else self.along.northward
        return np.flip(picture, tuple(axis - leading for axis in flipped if axis >= leading))


def _components(
    model: Any, n_components: int | None, usual: int, axes: Sequence[str] | None, shares: ArrayLike | None
) -> _Components:
    """Return the components of a model, or given ones."""
    cells: Sequence[int] | None = None
    along = None
    if is_model(model):
        model = model_given(model)
        if isinstance(model, EOF):
            maps = model.eofs()
            values, shares = np.asarray(maps), model.explained_variance_ratio_ if shares is None else shares
            along = coordinates_of(maps) if is_labelled(maps) else None
            along = along and along.of_one_sample()
        else:
            pictures = component_pictures(model, _asked(n_components, usual))
            if pictures is None:
                raise DataError(f"{type(model).__name__} has no components of a sample's shape: give another model")
            values, shares = pictures, shares_of(model) if shares is None else shares
            cells = cells_shown(model, values)
            known = model._labels
            axes = axes or (known and known.axes)
            along = None if known is None else known.kept(model.sample_shape_)
    else:
        if is_labelled(model):
            along = (found := coordinates_of(model)) and found.of_one_sample()
        values = as_dense(model)
        if values.dtype.kind not in "buif":
            raise DataError(f"components have dtype {values.dtype}: give real numbers, for example the real part")
    if values.ndim < 2 or not values.size:
        raise DataError(f"there are no components to show in an array of {values.shape}: give (k, *sample_shape)")
    if n_components is not None and _asked(n_components, usual) > len(values):
        raise DataError(f"n_components is {n_components} but there are only {len(values)}: give at most that number")
    values = values[: _asked(n_components, usual)]
    return _Components(values, axes, shares_for(shares, len(values)), cells, along)


def component_pictures(model: Any, count: int) -> Array | None:
    """Return the first components as they are drawn, see `dpca.plots.overviews.overview`; None if there are none."""
    divided, shape = in_boxes(model.basis_), tuple(model.sample_shape_)
    # Lapped components are shown as `component_maps` filters them.
    if (
        divided is None
        or isinstance(divided.partition, LappedGrid)
        or math.prod(shape) * divided.dtype.itemsize <= LARGE_BYTES
    ):
        found: Array | None = model.component_maps(count)
        return found
    axes = None if model._labels is None else model._labels.axes
    indices = range(min(count, divided.score_shape[-1]))
    itemsize = divided.dtype.itemsize
    return np.stack([overview(partial(divided.component, index), shape, itemsize, axes) for index in indices])


def cells_shown(model: Any, pictures: Array) -> Sequence[int] | None:
    """Return the shape of cells of components as they are drawn; None without cells, or if pixels are left out."""
    cells: Sequence[int] | None = model.basis_.cell_shape
    lengths = zip(pictures.shape[1:], model.sample_shape_, strict=True)
    return None if any(1 < shown < n for shown, n in lengths) else cells


def _asked(n_components: int | None, usual: int) -> int:
    return usual if n_components is None else whole_number(n_components, "n_components", 1)


def _drawn(given: _Components, *, cell_shape: int | Sequence[int] | None = None) -> Figure:
    cells, colors, shares = given.cells, given.colors, given.shares
    if cell_shape is not None:
        cells = integers(cell_shape, "cell_shape")
        if not cells or min(cells) < 1:
            raise DataError(
                f"cell_shape is {cell_shape!r}: give a positive length for each spatial axis, or one for all"
            )
        cells = cells if len(cells) > 1 else 2 * cells
    panels = (panel(vector, given.axes, every_channel=colors is not None) for vector in given.values)
    pictures = [thinned(given.upright(align_signs(values, cells))) for values in panels]
    pictures = pictures if colors is None else [Blend.of(colors)(picture) for picture in pictures]
    extent, n_axes = extent_of(pictures), pictures[0].ndim
    shown = [by_sign(picture, extent) for picture in pictures]
    scale = None if n_axes == 1 else (extent, n_axes == 2)
    right = None if shares is None else [f"{share:.1%}" for share in shares[: len(shown)]]
    return tiles(shown, [f"{i + 1}" for i in range(len(shown))], right, scale=scale)

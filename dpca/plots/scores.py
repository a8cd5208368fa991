"""Scores as scatter plots of two components, and along time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import zarr
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from dpca.engine.sources.source import as_dense
from dpca.kernels.algebra.types import Array
from dpca.models import EOF
from dpca.models.scores import Scores, open_scores
from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, HAIRLINE, INK, MUTED, WIDTH
from dpca.plots.given import integers, model_given, shares_for, shares_of
from dpca.plots.maps import draw_series
from dpca.representation.lazy import as_lazy
from dpca.storage.arrays.coordinates import UNITS, coordinates_in, dims_of
from dpca.storage.arrays.labelled import is_labelled, labelled_array
from dpca.storage.arrays.reading import array_in, open_group
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole

# Most points of a chart, and the number of runs of samples in which they are read.
_POINTS, _RUNS = 10_000, 20
_ROW, _TOP, _FOOT, _LEFT = 1.25, 0.1, 0.6, 1.1
_EARLY_TO_LATE = LinearSegmentedColormap.from_list("early to late", [INK, ACCENT, "#e8a54b"])


@dataclass(frozen=True, eq=False)
class _Given:
    """Scores (n, k) of one part of the samples, lazy if the input was, with shares and times."""

    values: Any
    shares: Array | None
    times: Array | None
    time_label: str

    def some(self, most: int) -> tuple[Array, Array]:
        """Return indices and leading scores of up to 10,000 samples, in runs that are spread over the stack."""
        n = self.values.shape[0]
        if n <= _POINTS:
            return np.arange(n), np.asarray(self.values[:, :most])
        length = _POINTS // _RUNS
        starts = np.linspace(0, n - length, _RUNS).astype(int)
        rows = np.concatenate([np.arange(start, start + length) for start in starts])
        return rows, np.concatenate([np.asarray(self.values[start : start + length, :most]) for start in starts])


def scores_scatter(
    scores: Any,
    place: ArrayLike | None = None,
    *,
    components: Sequence[int] = (0, 1),
    model: Any = None,
    cell: int | Sequence[int] | None = None,
    explained_variance_ratio: ArrayLike | None = None,
) -> Figure:
    """Draw a scatter plot of two scores; a single score is drawn against the position in the stack.

    Parameters
    ----------
    scores : array (n, k) or (n, *grid_shape, k), path, or an opened store of scores
        Of more than 10,000 samples, 20 runs of 500 are read, spread over the stack.
    place : array_like (n,), optional
        Values that color the points from dark to light; the default is the position in the stack.
    components : sequence of 2 int
        Indices of the components, from 0.
    model : fitted estimator or path, optional
        The model, for the share of the variance of each component; a store of scores contains its own.
    cell : int or sequence of int, optional
        Index of the cell or band.
    explained_variance_ratio : array_like (k,), optional
        The shares, without a model.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        If the shapes do not fit, or a component or cell is out of range.
    """
    given = _given(scores, model, cell, explained_variance_ratio)
    n, k = given.values.shape
    asked = integers(components, "the components to show")
    chosen = asked[: min(k, 2)]
    if len(asked) != 2 or not all(0 <= component < k for component in chosen):
        raise DataError(f"components are {tuple(asked)}: give two indices from 0 to {k - 1}")
    rows, values = given.some(max(chosen) + 1)
    values = values.astype(np.float64)
    if place is None:
        where = rows / max(n - 1, 1)
    else:
        where = np.asarray(place, np.float64)
        if where.shape != (n,):
            raise DataError(f"scores have shape {(n, k)} and place has {where.shape}: give a value for each sample")
        where = where[rows]
    labels = [_name(component, given.shares) for component in chosen]
    two = len(chosen) == 2
    across, up = (values[:, chosen[0]], values[:, chosen[1]]) if two else (where, values[:, chosen[0]])
    figure, axes = drawing.chart(labels[0] if two else "position in the stack", labels[-1])
    size = float(np.clip(2e4 / len(values), 3, 25))
    limits = (0.0, 1.0) if place is None else (float(where.min()), float(where.max()))
    axes.scatter(
        across, up, c=where, cmap=_EARLY_TO_LATE, vmin=limits[0], vmax=limits[1], s=size, alpha=0.7, linewidths=0
    )
    for draw in (axes.axhline, axes.axvline)[: len(labels)]:
        draw(0, color=HAIRLINE, linewidth=0.8, zorder=0)
    return figure


def scores_over_time(
    scores: Any,
    n_components: int | None = None,
    *,
    times: ArrayLike | None = None,
    model: Any = None,
    cell: int | Sequence[int] | None = None,
    explained_variance_ratio: ArrayLike | None = None,
) -> Figure:
    """Draw the first scores of consecutive samples as curves, one below the other.

    Parameters
    ----------
    scores : array (n, k) or (n, *grid_shape, k), path, or an opened store of scores
        Scores in the order of time.
    n_components : int, optional
        Number of components; the default is 4, or all if there are fewer.
    times : array_like (n,), optional
        Numbers or dates; the default is the coordinate of the samples, or their indices.
    model, cell, explained_variance_ratio
        As in `scores_scatter`.

    Returns
    -------
    matplotlib.figure.Figure
        Of more than 10,000 samples, every m-th is drawn; the label of the axis gives m.

    Raises
    ------
    DataError
        If the shapes do not fit, or there are fewer components than ``n_components``.
    """
    given = _given(scores, model, cell, explained_variance_ratio)
    n, k = given.values.shape
    if n_components is not None and not (is_whole(n_components) and 1 <= n_components <= k):
        raise DataError(f"n_components is {n_components!r}: give a number from 1 to {k}")
    shown = min(4, k) if n_components is None else int(n_components)
    along = np.arange(n) if given.times is None else given.times
    if times is not None:
        along = drawing.along_axis(times)
    if along.shape != (n,):
        raise DataError(f"times have shape {along.shape} for {n:,} samples: give a time for each")
    step = -(-n // _POINTS)
    values = np.asarray(given.values[::step, :shown], np.float64)
    figure, top = drawing.page(_TOP + shown * _ROW + _FOOT)
    label = given.time_label if times is None else "time"
    for row in range(shown):
        bottom = top - _TOP - (row + 1) * _ROW
        axes = draw_series(
            figure, along[::step], values[:, row], (_LEFT, bottom + 0.12, WIDTH - _LEFT - 0.15, _ROW - 0.3)
        )
        drawing.write(figure, 0.08, bottom + _ROW / 2, _name(row, None), color=INK)
        if given.shares is not None:
            drawing.write(figure, 0.08, bottom + _ROW / 2 - 0.17, f"{given.shares[row]:.1%}", color=MUTED, size=8)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
        if row < shown - 1:
            axes.tick_params(labelbottom=False)
    caption = label if step == 1 else f"{label}, every {step:,}th sample"
    drawing.write(figure, (WIDTH + _LEFT) / 2, 0.12, drawing.drawable(caption, 90), color=MUTED, ha="center")
    return figure


def _given(scores: Any, model: Any, cell: int | Sequence[int] | None, shares: ArrayLike | None) -> _Given:
    """Return scores in two axes, lazy where they were."""
    values: Any
    times, label = None, "sample"
    if isinstance(scores, str | os.PathLike):
        scores = open_scores(scores, model=model)
    if isinstance(scores, Scores):
        model, values = model or scores.model, scores.scores
        times, label = _times_in(scores.path)
    elif is_labelled(scores):
        named = labelled_array(scores)
        values, label = named.data, str(named.dims[0])
        times = drawing.along_axis(named.coords[named.dims[0]].values) if named.dims[0] in named.coords else None
    else:
        values = scores if isinstance(scores, da.Array | zarr.Array) else as_dense(scores)
    if values.ndim < 2 or 0 in values.shape:
        raise DataError(f"scores have shape {tuple(values.shape)}: give (n, k), at least one sample and one component")
    if values.dtype.kind not in "buif":
        raise DataError(f"scores have dtype {values.dtype}: give real numbers, for example the absolute values")
    grid = tuple(values.shape[1:-1])
    if grid:
        place = () if cell is None else tuple(integers(cell, "the cell to show"))
        if len(place) != len(grid) or not all(0 <= at < length for at, length in zip(place, grid, strict=True)):
            raise DataError(
                f"cell is {cell!r} but scores have {grid} cells or bands: give one index, cell={(0,) * len(grid)}"
            )
        values = (as_lazy(values) if isinstance(values, zarr.Array) else values)[(slice(None), *place)]
    if shares is None and model is not None:
        found = model_given(model)
        known = found.model_ if isinstance(found, EOF) else found
        if hasattr(known, "total_variance_") and hasattr(known, "explained_variance_"):
            shares = known.explained_variance_ratio_[place] if grid else shares_of(known)
    return _Given(values, shares_for(shares, values.shape[1]), times, label)


def _times_in(path: str) -> tuple[Array | None, str]:
    """Return the coordinate along the samples of a store of scores, and its name."""
    group = open_group(path)
    stored = array_in(group, "scores")
    dims = dims_of(stored)
    along = dims and coordinates_in(group, dims, stored.shape, stored.attrs.asdict())
    if not dims or not along or dims[0] not in along.arrays:
        return None, "sample"
    found = along.arrays[dims[0]]
    units = found.attributes.get(UNITS, "")
    return found.values, f"{dims[0]} ({units})" if units else dims[0]


def _name(component: int, shares: Array | None) -> str:
    share = "" if shares is None else f" ({shares[component]:.1%} of the variance)"
    return f"score {component + 1}{share}"

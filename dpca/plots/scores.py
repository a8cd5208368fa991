"""Scores as points, two components at a time, and along time."""

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

from dpca.engine.source import as_dense
from dpca.kernels.types import Array
from dpca.models import EOF
from dpca.models.scores import Scores, open_scores
from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, HAIRLINE, INK, MUTED, WIDTH
from dpca.plots.given import integers, model_given, shares_for, shares_of
from dpca.plots.maps import draw_series
from dpca.representation.lazy import as_lazy
from dpca.storage.coordinates import UNITS, coordinates_in, dims_of
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole
from dpca.storage.labelled import is_labelled, labelled_array
from dpca.storage.reading import array_in, open_group

# Points that a chart can still show, and the runs of samples that they are read in.
_POINTS, _RUNS = 10_000, 20
_ROW, _TOP, _FOOT, _LEFT = 1.25, 0.1, 0.6, 1.1
_EARLY_TO_LATE = LinearSegmentedColormap.from_list("early to late", [INK, ACCENT, "#e8a54b"])


@dataclass(frozen=True, eq=False)
class _Given:
    """Scores (n, k) of one part of the samples, lazy where they were, and what is known of them."""

    values: Any
    shares: Array | None
    times: Array | None
    time_label: str

    def some(self, most: int) -> tuple[Array, Array]:
        """Read the first components of up to 10,000 samples in runs from all over the stack: numbers and scores."""
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
    """Draw each sample as a point, one score against another; against its place in the stack where there is only one.

    Parameters
    ----------
    scores : array (n, k) or (n, *grid_shape, k), path, or an opened store of scores
        Of more than 10,000 samples, 20 runs of 500 from all over the stack are read.
    place : array_like (n,), optional
        What colors the points from dark to light; default where in the stack each sample is.
    components : sequence of 2 int
        Which components, counted from 0.
    model : fitted estimator or path, optional
        States the share of the variance of each component; a store of scores holds its own.
    cell : int or sequence of int, optional
        Of scores of cells or bands, which one.
    explained_variance_ratio : array_like (k,), optional
        The shares, where there is no model.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        If the shapes do not fit, or there is no such component or cell.
    """
    given = _given(scores, model, cell, explained_variance_ratio)
    n, k = given.values.shape
    asked = integers(components, "the components to show")
    chosen = asked[: min(k, 2)]
    if len(asked) != 2 or not all(0 <= component < k for component in chosen):
        raise DataError(f"components are {tuple(asked)} but there are 0 to {k - 1}: name two of them")
    rows, values = given.some(max(chosen) + 1)
    values = values.astype(np.float64)
    if place is None:
        where = rows / max(n - 1, 1)
    else:
        where = np.asarray(place, np.float64)
        if where.shape != (n,):
            raise DataError(f"scores are {(n, k)} and places {where.shape}: give a place for each sample")
        where = where[rows]
    labels = [_name(component, given.shares) for component in chosen]
    two = len(chosen) == 2
    across, up = (values[:, chosen[0]], values[:, chosen[1]]) if two else (where, values[:, chosen[0]])
    figure, axes = drawing.chart(labels[0] if two else "place in the stack", labels[-1])
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
    """Draw the first scores of samples that follow each other as curves, one below the other.

    Parameters
    ----------
    scores : array (n, k) or (n, *grid_shape, k), path, or an opened store of scores
        In the order of time.
    n_components : int, optional
        How many; default 4, or as many as there are.
    times : array_like (n,), optional
        Numbers or dates; default what stands along the samples, else their numbers.
    model, cell, explained_variance_ratio
        As in `scores_scatter`.

    Returns
    -------
    matplotlib.figure.Figure
        Of more than 10,000 samples, one of each run of equal length is drawn, as the label of the axis says.

    Raises
    ------
    DataError
        If the shapes do not fit, or there are not so many components.
    """
    given = _given(scores, model, cell, explained_variance_ratio)
    n, k = given.values.shape
    if n_components is not None and not (is_whole(n_components) and 1 <= n_components <= k):
        raise DataError(f"n_components is {n_components!r} but there are 1 to {k}: ask for so many")
    shown = min(4, k) if n_components is None else int(n_components)
    along = np.arange(n) if given.times is None else given.times
    if times is not None:
        along = drawing.along_axis(times)
    if along.shape != (n,):
        raise DataError(f"times are {along.shape} for {n:,} samples: give a time for each")
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
    told = label if step == 1 else f"{label}, every {step:,}th sample"
    drawing.write(figure, (WIDTH + _LEFT) / 2, 0.12, drawing.drawable(told, 90), color=MUTED, ha="center")
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
        raise DataError(f"scores are {tuple(values.shape)}: give (n, k) of at least one sample and one component")
    if values.dtype.kind not in "buif":
        raise DataError(f"scores hold {values.dtype} values: show real numbers, such as their absolute values")
    grid = tuple(values.shape[1:-1])
    if grid:
        place = () if cell is None else tuple(integers(cell, "the cell to show"))
        if len(place) != len(grid) or not all(0 <= at < length for at, length in zip(place, grid, strict=True)):
            raise DataError(
                f"cell is {cell!r} but scores are of {grid} cells or bands: name one, cell={(0,) * len(grid)}"
            )
        values = (as_lazy(values) if isinstance(values, zarr.Array) else values)[(slice(None), *place)]
    if shares is None and model is not None:
        found = model_given(model)
        known = found.model_ if isinstance(found, EOF) else found
        if hasattr(known, "total_variance_") and hasattr(known, "explained_variance_"):
            shares = known.explained_variance_ratio_[place] if grid else shares_of(known)
    return _Given(values, shares_for(shares, values.shape[1]), times, label)


def _times_in(path: str) -> tuple[Array | None, str]:
    """Return what a store of scores keeps along its samples, and what it is called."""
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

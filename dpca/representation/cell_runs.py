"""Runs of neighboring parts of equal size, and their components for products of matrices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels, to_pixels

# Upper limit of the squared length of a row that is zero up to rounding error.
_ZERO_ROW = 1e-6


class CellRun(NamedTuple):
    """Consecutive parts of equal size. They are centered in one call, and multiplied in one for each rank."""

    first: int
    """Index of the first partition."""
    start: int
    """Its index among the parts of the tile."""
    mean: Array
    """(count, 1, n_features), float64"""
    products: list[tuple[slice, Array]]
    """Partitions and their components (count, rank, n_features), or (1, ...) if the components are shared."""


def uncentered(x: Array, mean: Array, pixels: Pixels | None) -> Array:
    """Return the values (count, n, n_features) plus their means, rounded if pixels are given; may reuse ``x``."""
    if pixels is not None and pixels.are_small:
        from dpca.kernels.sweeps import add_and_round

        rounded = np.empty(x.shape, pixels.dtype)
        add_and_round(x, mean[:, 0], *map(x.dtype.type, pixels.limits), rounded)
        return rounded
    x += mean
    return x if pixels is None else to_pixels(x, *pixels)


def products_of(parts: list[Array], ranks: list[int]) -> list[tuple[slice, Array]]:
    """Group consecutive parts of equal rank; return them with their components (count, rank, n_features)."""
    products = []
    for rank, equal in itertools.groupby(range(len(parts)), ranks.__getitem__):
        chosen = list(equal)
        here = slice(chosen[0], chosen[-1] + 1)
        rows = stacked(parts[here])[:, :rank]
        if len(rows) > 1 and (rows == rows[:1]).all():
            rows = rows[:1].copy()
        products.append((here, rows))
    return products


def stacked(parts: Sequence[Array]) -> Array:
    """View arrays (n, d) of equal shape that are contiguous in memory as one array (count, n, d)."""
    first = parts[0]
    return as_strided(first, (len(parts), *first.shape), (first.nbytes, *first.strides))


def scores_of(run: CellRun, some: slice, rows: Array, scores: Array) -> Array:
    """View the scores (count, n, rank) of some parts of a run in those (n, n_parts, n_components) of all."""
    return scores[:, run.first + some.start : run.first + some.stop, : rows.shape[1]].swapaxes(0, 1)


def squared_lengths(rows: Array) -> Array:
    """Return the squared lengths (k,) of rows (k, d)."""
    squares: Array = np.einsum("ij,ij->i", rows, rows)
    return squares


def ranks_of(parts: Sequence[Array]) -> list[int]:
    """Return the number of rows up to the last one of length 1, of each of some parts (k, d) as for `stacked`.

    Other rows have length 0 up to rounding error.
    """
    rows = stacked(parts)
    used = np.einsum("cij,cij->ci", rows, rows) > _ZERO_ROW
    ranks: list[int] = (used * np.arange(1, 1 + used.shape[1])).max(axis=1, initial=0).tolist()
    return ranks

"""Compressed stores: a stack as quantized scores of its cells, read as the array that it was made from.

``storage/FORMAT.md`` describes the store, with a reader in numpy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.codec.cells import CellCodec, Quantized
from dpca.codec.interpolation import unfolded
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.residual import sums
from dpca.codec.waves import RUN, restored
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.types import Array, Region
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.prefilter import Prefilter
from dpca.representation.compressed_views import CompressedViews
from dpca.representation.indexing import alike, moved, per_axis, runs
from dpca.storage.arrays import create_array, write_shard
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.layout import Layout
from dpca.storage.reading import array_in, open_group, read_into, root_facts

COMPRESSED_VERSION = 1

# Samples, and rows of codes, of a chunk: the trade between one sample, for which whole chunks are decoded, and a cell
# of many samples. Half as many of either cost 1 % of the bytes each.
_ROWS, _CODES = 192, 128
_SAMPLES_BYTES = 2**26
# Samples of a chunk of residuals, which are as many as the values of the samples.
_RESIDUAL_ROWS = RUN
# Values of a chunk where there are residuals only, which takes ten times as many bytes while it is decoded.
_BLOCK_VALUES = 2**23
# Positions from which chunks of waves hold 1024 of them and not 512: more is packed better, and less is padded.
_MANY = 2**13
# Bytes of codes that are decoded at once: of a part of a sample, those of several chunks.
_CODE_BYTES = 2**24
# The last four are left out where all ranks are zero.
_OF_POSITIONS = ("cell", "component", "exponent", "basis")
_INTEGERS = ("group", "rank", "mean", *_OF_POSITIONS)


@dataclass(frozen=True)
class Form:
    """How the arrays of a compressed store lie.

    Parameters
    ----------
    shape : tuple of int
        Of the stack.
    itemsize : int
        Bytes of one of its values.
    plain : bool
        Whether there are residuals only: fewer chunks of more samples are smaller, and predictions stay within a chunk.
    """

    shape: tuple[int, ...]
    itemsize: int
    plain: bool = False

    @property
    def rows(self) -> int:
        """Samples of a chunk of codes."""
        rows, sample = _ROWS, math.prod(self.shape[1:]) * self.itemsize
        if self.plain:
            most = max(1, _BLOCK_VALUES // math.prod(self.shape[1:]))
            return math.ceil(self.shape[0] / math.ceil(self.shape[0] / most))
        while rows > _RESIDUAL_ROWS and rows * sample > _SAMPLES_BYTES:
            rows //= 2
        # What is left over in the last chunk is filled up with zeros, which are not free.
        even = math.ceil(self.shape[0] / math.ceil(self.shape[0] / rows))
        return math.ceil(even / _RESIDUAL_ROWS) * _RESIDUAL_ROWS

    @property
    def shard_rows(self) -> int:
        """Samples of a shard, the unit of writing."""
        sample = math.prod(self.shape[1:]) * self.itemsize
        return self.rows * max(1, min(4, 2 * _SAMPLES_BYTES // (self.rows * sample)))

    def codes(self, n_positions: int, waves: bool) -> Layout:
        """Return the layout of codes (n_positions, n_samples), or of waves (n_positions, RUN, runs)."""
        high = _CODES * (4 if n_positions < _MANY else 8) if waves else _CODES
        width = max(1, -(-n_positions // high)) * high
        if waves:
            return Layout((high, 1, self.rows // RUN), (width, RUN, self.shard_rows // RUN))
        return Layout((high, self.rows), (width, self.shard_rows))

    @property
    def residual(self) -> Layout:
        """The layout of residuals, which have the shape of the stack."""
        rows = self.rows if self.plain else _RESIDUAL_ROWS
        return Layout((rows, *self.shape[1:]), (self.shard_rows, *self.shape[1:]))


def write_quantized(group: zarr.Group, quantized: Quantized, grid: CellGrid, axes: Sequence[str]) -> None:
    """Write what codes are decoded with into the group of a compressed store.

    Raises
    ------
    OverflowError
        If 32 bits do not hold an integer.
    """
    spatial = axes[1 : 1 + grid.n_spatial]
    for name in _INTEGERS:
        values = np.asarray(getattr(quantized, name))
        if name in _OF_POSITIONS and not len(quantized.cell):
            continue
        names: Sequence[str] = axes[1:] if name == "mean" else (f"{name}_number",)
        names = ("position",) if name in ("cell", "component") else names
        dtype = integer_dtype(float(np.abs(values).max(initial=0)))
        chunks = mean_chunks(grid) if name == "mean" else (2**14,)
        shards = tuple(-(-max(1, n) // c) * c for n, c in zip(values.shape, chunks, strict=True))
        layout = Layout(chunks, shards)
        array = create_array(group, name, values.shape, dtype, layout, names, codec="packed")
        if values.size:
            write_shard(array, (0,) * values.ndim, to_integers(values, dtype))
    if quantized.interpolated:
        kept = quantized.weights
        layout, names = Layout(kept.shape, kept.shape), ("level", "parity", "axis", "distance")
        write_shard(
            create_array(group, "weights", kept.shape, kept.dtype, layout, names, codec="packed"), (0,) * 4, kept
        )
    if isinstance(grid, LappedGrid):
        for axis, name in enumerate(spatial):
            values = filter_along(grid, axis)
            layout = Layout(values.shape, values.shape)
            array = create_array(
                group, f"filter_{axis}", values.shape, values.dtype, layout, (name, f"filtered_{name}"), codec="zstd"
            )
            write_shard(array, (0, 0), values)


def mean_chunks(grid: CellGrid) -> tuple[int, ...]:
    """Return the chunks of the mean: a channel each, which is smooth by itself."""
    return (*grid.sample_shape[: grid.n_spatial], *(1 for _ in grid.channel_shape))


def filter_along(grid: LappedGrid, axis: int) -> Array:
    """Return the orthogonal matrix F (length, length), float64, with x = F @ z along an axis for filtered samples z."""
    length = grid.sample_shape[axis]
    line = Prefilter(CellGrid((length,), (grid.cell_shape[axis],)), grid.overlap)
    return np.ascontiguousarray(line.invert(np.eye(length), (0,)).T)


def grid_of(facts: dict[str, Any]) -> CellGrid:
    """Return the cells that a compressed store states."""
    shape, cell = tuple(map(int, facts["sample_shape"])), tuple(map(int, facts["cell_shape"]))
    return LappedGrid(shape, cell, int(facts["overlap"])) if facts["overlap"] else CellGrid(shape, cell)


def read_codec(group: zarr.Group) -> CellCodec:
    """Read what the codes of a store are decoded with.

    Raises
    ------
    StoreError
        If it is damaged.
    """
    facts = root_facts(group)
    arrays: dict[str, Array] = {}
    try:
        for name in (*_INTEGERS, "weights") if facts.get("interpolated") else _INTEGERS:
            if name in _OF_POSITIONS and not arrays["rank"].any():
                arrays[name] = np.zeros(0, np.int16)
                continue
            stored = array_in(group, name)
            read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
            arrays[name] = values
        quantized = Quantized.of(arrays, facts)
        components = quantized.components(grid_of(facts), decoding_dtype(facts))
        cell, component = arrays["cell"].astype(int), arrays["component"].astype(int)
        return CellCodec(components, quantized.step, cell, component, quantized.waves, quantized.interpolation)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StoreError(
            f"'{group.store_path}' is no whole compressed store ({one_line(error)}): make it again"
        ) from error


@dataclass(frozen=True, eq=False)
class Compressed(CompressedViews):
    """A compressed store, opened as the array that it was made from; `open_compressed` makes one.

    It takes numpy's indexes. What is asked for is decoded, and little else: chunks of codes hold some hundred samples
    of some cells.

    Attributes
    ----------
    path : str
    shape : tuple of int
        (n_samples, *sample_shape).
    dtype : numpy dtype
        That of the original, to which values are rounded.
    axes : tuple of str
        Names of the axes.
    facts : dict
        What the store states about itself.
    level : int or None
        Components of each cell that are used at most, None for all.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    facts: dict[str, Any]
    level: int | None
    codec: CellCodec
    _group: zarr.Group

    def __reduce__(self) -> Any:
        return opened_once, (self.path, self.facts["fingerprint"], self.level)

    def __dask_tokenize__(self) -> Any:
        return COMPRESSED, self.path, self.facts["fingerprint"], self.level

    def __repr__(self) -> str:
        return f"<Compressed '{self.path}' {self.shape} {self.dtype}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[...], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return values, as numpy would of the whole array.

        Raises
        ------
        IndexError
            As numpy.
        StoreError
            If a chunk that is needed is missing or damaged.
        """
        parts = per_axis(index, self.shape)
        rows, first = parts[0]
        ends = [(int(min(taken)), int(max(taken)) + 1) if len(taken) else (0, 0) for taken, _ in parts[1:]]
        box, (samples, places) = tuple(ends), np.unique(rows, return_inverse=True)
        values = self._decoded(samples, box)
        if isinstance(first, slice):
            first = slice(None, None, -1 if first.step < 0 else 1)
        else:
            first = places.reshape(np.shape(first)) if np.ndim(first) else int(places[0])
        others = [moved(part, start) for (_, part), (start, _) in zip(parts[1:], ends, strict=True)]
        return values[(first, *others)]

    def _decoded(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples, whose numbers ascend."""
        values = np.empty((len(samples), *(stop - start for start, stop in box)), self.dtype)
        if not values.size:
            return values
        chosen = self.codec.rows_of(box)
        if self.level is not None:
            chosen = chosen[self.codec.component[chosen] < self.level]
        wide, itemsize = self.rows, self.stored("codes").dtype.itemsize
        at_once = wide * max(1, _CODE_BYTES // (wide * itemsize * max(1, len(chosen)))) if len(chosen) else wide
        pixels, step = pixels_of(self.facts), self.facts["residual_step"]
        for block in alike(samples // at_once):
            some = samples[block]
            codes = self.codes(chosen, some)
            if step is None or (self.level is not None and len(self.codec.cell)):
                self.codec.decode(codes, box, chosen, pixels, values[block])
                continue
            y = self.codec.decode(codes, box, chosen)
            for chunk in alike(some // wide):
                y[chunk] += self._residual(some[chunk], box)
            values[block] = to_pixels(y, *pixels)
        return values

    def codes(self, chosen: Array, samples: Array) -> Array:
        """Return chosen rows of codes of samples, not of waves; of both, the numbers ascend."""
        codes, waves = self.stored("codes"), self.codec.waves
        high = codes.chunks[0]
        found = np.empty((len(chosen), len(samples)), self.codec.dtype if waves else codes.dtype)
        for chunk in alike(samples // self.rows):
            start, stop = int(samples[chunk][0]), int(samples[chunk][-1]) + 1
            columns: tuple[slice, ...] = (slice(start, stop),)
            if waves:
                columns, start = (slice(0, RUN), slice(start // RUN, -(-stop // RUN))), start // RUN * RUN
            wanted, lengths = samples[chunk] - start, [part.stop - part.start for part in columns]
            for run in runs(np.unique(chosen // high)):
                a, b = int(run[0]) * high, min((int(run[-1]) + 1) * high, codes.shape[0])
                part = np.empty((b - a, *lengths), codes.dtype)
                read_into(codes, (slice(a, b), *columns), part)
                here = slice(*np.searchsorted(chosen, (a, b)))
                if waves:
                    part = self.codec.of_samples(restored(part))
                if len(wanted) < part.shape[1]:
                    part = part[:, wanted]
                found[here, chunk] = part if here.stop - here.start == b - a else part[chosen[here] - a]
        return found

    def _residual(self, samples: Array, box: Region) -> Array:
        """Return the residuals of samples of one chunk of codes, ascending, in a box."""
        residual, along = self.stored("residual"), self.facts["differences"]
        if self.codec.interpolation is not None:
            first = int(samples[0]) // self.rows * self.rows
            part = np.empty((min(self.rows, len(self) - first), *self.shape[1:]), residual.dtype)
            read_into(residual, (slice(first, first + len(part)), *(slice(None) for _ in box)), part)
            decoded: Array = self.codec.interpolation.decode(unfolded(part))[samples - first]
            return decoded[(slice(None), *(slice(*reach) for reach in box))]
        start, stop = int(samples[0]), int(samples[-1]) + 1
        ends = [(0 if axis in along else a, b) for axis, (a, b) in enumerate(box, 1)]
        part = np.empty((stop - start, *(b - a for a, b in ends)), residual.dtype)
        read_into(residual, (slice(start, stop), *(slice(*reach) for reach in ends)), part)
        crop = (slice(a - first, None) for (a, _), (first, _) in zip(box, ends, strict=True))
        return sums(part[samples - start], along)[(slice(None), *crop)] * float(self.facts["residual_step"])


def pixels_of(facts: dict[str, Any]) -> Pixels:
    """Return what decoded values are rounded to."""
    low, high = facts["clip"]
    return Pixels(np.dtype(facts["dtype"]), (low, high))


def decoding_dtype(facts: dict[str, Any]) -> np.dtype[Any]:
    """Return the type of arithmetic: that of integers that are rounded anyway is as short as their type allows."""
    dtype = np.dtype(facts["dtype"])
    exact = dtype.kind == "f" or facts["residual_step"] is not None
    return np.dtype(np.float64) if exact else working_dtype(dtype)


def open_compressed(path: str | os.PathLike[str], *, level: int | None = None) -> Compressed:
    """Open a compressed store as the array that it was made from.

    Parameters
    ----------
    path : path-like or URL
        A store that ``dpca encode`` made.
    level : int, optional
        Use at most so many of the first components of each cell, for a preview: a part of the codes is read.

    Returns
    -------
    Compressed
        Has a shape and a dtype and takes numpy's indexes; components, means and metadata have been read.

    Raises
    ------
    StoreError
        If there is no such store, or it is damaged or of a newer version.
    DataError
        If ``level`` is no number of components.

    Examples
    --------
    >>> import dpca
    >>> photos = dpca.open_compressed("photos.zarr")  # doctest: +SKIP
    >>> photos[4711]  # one photograph  # doctest: +SKIP
    >>> photos[:2000, 96:112, 96:112]  # a part of many: the rest is not decoded  # doctest: +SKIP
    """
    if level is not None and (isinstance(level, bool) or not isinstance(level, int | np.integer) or level < 1):
        raise DataError(f"level is {level!r}: give a positive number of components, or None for all")
    where = os.fspath(path)
    return compressed_in(open_group(path), where if "://" in where else os.path.abspath(where), level)


def compressed_in(group: zarr.Group, path: str, level: int | None = None) -> Compressed:
    """Return the compressed store in a group as `open_compressed` does; it may not be under its name yet."""
    facts = root_facts(group)
    if facts.get("kind") != COMPRESSED:
        raise StoreError(f"'{path}' is no compressed store: give one that 'dpca encode' made")
    if facts.get("version") != COMPRESSED_VERSION:
        raise StoreError(
            f"'{path}' is a compressed store of version {facts.get('version')} and this program reads version "
            f"{COMPRESSED_VERSION}: update dask-dpca"
        )
    codec = read_codec(group)
    shape = (int(facts["n_samples"]), *codec.components.grid.sample_shape)
    return Compressed(path, shape, np.dtype(facts["dtype"]), tuple(facts["axes"]), facts, level, codec, group)


@lru_cache(maxsize=4)
def opened_once(path: str, fingerprint: str, level: int | None) -> Compressed:
    """Open a store once a process."""
    opened = _opened_whole(path, fingerprint)
    return replace(opened, level=level)


@lru_cache(maxsize=4)
def _opened_whole(path: str, fingerprint: str) -> Compressed:
    opened = open_compressed(path)
    if opened.facts["fingerprint"] != fingerprint:
        raise StoreError(f"'{path}' is not the store that was opened: it was replaced meanwhile, open it again")
    return opened

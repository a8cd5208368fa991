"""Compressed stores: a stack as quantized scores of its cells, read as the array that it was made from.

``storage/FORMAT.md`` describes the store, with a reader in numpy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.codec.cells import CellCodec
from dpca.codec.interpolation import unfolded
from dpca.codec.residual import sums
from dpca.codec.waves import RUN, from_waves, placed
from dpca.kernels.pixels import to_pixels
from dpca.kernels.types import Array, Region
from dpca.representation.compressed_form import pixels_of, read_codec
from dpca.representation.compressed_views import CompressedViews
from dpca.representation.indexing import alike, moved, per_axis, runs
from dpca.representation.read_plan import decoding_bytes
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.given_numbers import whole_number
from dpca.storage.reading import open_group, read_into, root_facts
from dpca.storage.replaced import reopening

COMPRESSED_VERSION = 1

# Bytes of codes that are decoded at once: of a part of a sample, those of several chunks.
_CODE_BYTES = 2**24


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
        ReplacedError
            If another store stands at the path by now, and what is needed is not read yet.
        """
        parts = per_axis(index, self.shape)
        (rows, first), box = parts[0], _box_of(parts[1:])
        samples, places = np.unique(rows, return_inverse=True)
        values = self._decoded(samples, box)
        if isinstance(first, slice):
            first = slice(None, None, -1 if first.step < 0 else 1)
        else:
            first = places.reshape(np.shape(first)) if np.ndim(first) else int(places[0])
        others = [moved(part, start) for (_, part), (start, _) in zip(parts[1:], box, strict=True)]
        return values[(first, *others)]

    @property
    def n_components(self) -> int:
        """Components of the cell that keeps most of them, of which `level` uses a part; 0 where there are none."""
        return int(self.codec.component.max(initial=-1)) + 1

    def read_bytes(self, index: Any = ...) -> int:
        """Return the bytes of memory that reading an index takes at most, those of the result included.

        Of lazy arrays, each task takes as many as the index of a chunk; `chunks` says how many samples of which
        length these have. The store itself, its components and means, is held beside that.

        Raises
        ------
        IndexError
            As numpy.
        """
        (rows, _), *others = per_axis(index, self.shape)
        box = _box_of(others)
        chosen = self.chosen(box)
        return decoding_bytes(self, len(np.unique(rows)), box, chosen, self.at_once(chosen))

    def _decoded(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples, whose numbers ascend."""
        values = np.empty((len(samples), *(stop - start for start, stop in box)), self.dtype)
        if not values.size:
            return values
        chosen, wide, places = self.chosen(box), self.rows, self.places(samples)
        at_once = self.at_once(chosen)
        pixels, step = pixels_of(self.facts), self.facts["residual_step"]
        for block in alike(places // at_once):
            some = places[block]
            codes = self._codes_at(chosen, some)
            if step is None or (self.level is not None and len(self.codec.cell)):
                self.codec.decode(codes, box, chosen, pixels, values[block])
                continue
            y = self.codec.decode(codes, box, chosen)
            for chunk in alike(some // wide):
                y[chunk] += self._residual(some[chunk], box)
            values[block] = to_pixels(y, *pixels)
        return values

    def chosen(self, box: Region) -> Array:
        """Return the rows of codes that a box of a sample takes, ascending."""
        chosen = self.codec.rows_of(box)
        return chosen if self.level is None else chosen[self.codec.component[chosen] < self.level]

    def at_once(self, chosen: Array) -> int:
        """Return how many samples are decoded at once of these rows of codes."""
        wide, itemsize = self.rows, self.stored("codes").dtype.itemsize
        return wide * max(1, _CODE_BYTES // (wide * itemsize * max(1, len(chosen))))

    def codes(self, chosen: Array, samples: Array) -> Array:
        """Return chosen rows of codes of samples, not of waves; of both, the numbers ascend."""
        return self._codes_at(chosen, self.places(samples))

    def places(self, samples: Array) -> Array:
        """Return where samples lie along codes and residuals; see ``breaks`` in ``storage/FORMAT.md``."""
        return placed(samples, self.facts.get("breaks", ()))

    def _codes_at(self, chosen: Array, places: Array) -> Array:
        codes, waves = self.stored("codes"), self.codec.waves
        high = codes.chunks[0]
        found = np.empty((len(chosen), len(places)), self.codec.dtype if waves else codes.dtype)
        for chunk in alike(places // self.rows):
            start, stop = int(places[chunk][0]), int(places[chunk][-1]) + 1
            columns: tuple[slice, ...] = (slice(start, stop),)
            if waves:
                columns, start = (slice(0, RUN), slice(start // RUN, -(-stop // RUN))), start // RUN * RUN
            wanted, lengths = places[chunk] - start, [part.stop - part.start for part in columns]
            for run in runs(np.unique(chosen // high)):
                a, b = int(run[0]) * high, min((int(run[-1]) + 1) * high, codes.shape[0])
                here = slice(*np.searchsorted(chosen, (a, b)))
                every = here.stop - here.start == b - a
                if not waves and every and len(wanted) == lengths[0]:
                    read_into(codes, (slice(a, b), *columns), found[here, chunk])
                    continue
                part = np.empty((b - a, *lengths), codes.dtype)
                read_into(codes, (slice(a, b), *columns), part)
                if waves:
                    part = from_waves(part, self.codec.dtype)
                if len(wanted) < part.shape[1]:
                    part = part[:, wanted]
                found[here, chunk] = part if every else part[chosen[here] - a]
        return found

    def _residual(self, places: Array, box: Region) -> Array:
        """Return the residuals at places of one chunk of codes, ascending, in a box."""
        residual, along = self.stored("residual"), self.facts["differences"]
        if self.codec.interpolation is not None:  # such stores have no breaks: places are samples
            first = int(places[0]) // self.rows * self.rows
            part = np.empty((min(self.rows, len(self) - first), *self.shape[1:]), residual.dtype)
            read_into(residual, (slice(first, first + len(part)), *(slice(None) for _ in box)), part)
            decoded: Array = self.codec.interpolation.decode(unfolded(part))[places - first]
            return decoded[(slice(None), *(slice(*reach) for reach in box))]
        start, stop = int(places[0]), int(places[-1]) + 1
        ends = [(0 if axis in along else a, b) for axis, (a, b) in enumerate(box, 1)]
        part = np.empty((stop - start, *(b - a for a, b in ends)), residual.dtype)
        read_into(residual, (slice(start, stop), *(slice(*reach) for reach in ends)), part)
        crop = (slice(a - first, None) for (a, _), (first, _) in zip(box, ends, strict=True))
        return sums(part[places - start], along)[(slice(None), *crop)] * float(self.facts["residual_step"])


def _box_of(parts: Sequence[tuple[Any, Any]]) -> Region:
    """Return the smallest box that holds what indexes take of the axes of a sample, as `per_axis` gives them."""
    return tuple((int(min(taken)), int(max(taken)) + 1) if len(taken) else (0, 0) for taken, _ in parts)


@reopening
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
    >>> photos = dpca.open_compressed("photos.zarr")
    >>> photos[17].shape  # one photograph
    (40, 36, 3)
    >>> photos[:20, 9:25, 9:25].shape  # a part of many: the rest is not decoded
    (20, 16, 16, 3)
    """
    if level is not None:
        level = whole_number(level, "level", 1, ", a number of components, or None for all")
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
        raise ReplacedError(f"'{path}' was replaced since it was opened: open it again")
    return opened

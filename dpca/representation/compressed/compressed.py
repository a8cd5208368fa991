"""Compressed stores: the quantized scores of a stack, read as the original array.

``storage/FORMAT.md`` describes the format, with a reader in NumPy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.codec.interpolation import unfolded
from dpca.codec.masks import decoded_mask, mask_bytes
from dpca.codec.residual import sums
from dpca.codec.waves import RUN, from_waves, placed
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import to_pixels
from dpca.representation.compressed.compressed_form import GAPS, INFINITIES, pixels_of, read_codec
from dpca.representation.compressed.indexing import alike, moved, per_axis, runs
from dpca.representation.compressed.lazy_views import LazyViews
from dpca.representation.compressed.read_plan import decoding_bytes
from dpca.storage.arrays.reading import open_group, read_into, root_facts
from dpca.storage.arrays.tiles import GROUP, Tiles
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.given_numbers import whole_number
from dpca.storage.integrity.replaced import reopening

COMPRESSED_VERSION = 1
#: Version of stores with tiles, which programs for version 1 cannot read.
TILED_VERSION = 2
#: Version of stores with missing values or steps of noise, which programs for version 1 would ignore.
GAPS_VERSION = 3
#: Version of stores with infinities, which programs for version 3 would read as NaN.
INFINITIES_VERSION = 4

# Bytes of codes that are decoded at a time. For a part of a sample, several chunks fit.
_CODE_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class Compressed(LazyViews):
    """A compressed store, opened as the original array by `open_compressed`.

    It supports NumPy's indexing. Only the chunks of an index are decoded; a chunk of codes holds a few hundred samples
    of some cells.

    Attributes
    ----------
    path : str
    shape : tuple of int
        (n_samples, *sample_shape).
    dtype : numpy dtype
        Type of the original. Values are rounded to it.
    axes : tuple of str
        Names of the axes.
    facts : dict
        The attributes of the store.
    level : int or None
        Largest number of components of each cell to use, None for all.
    """

    def __reduce__(self) -> Any:
        return opened_once, (self.path, self.facts["fingerprint"], self.level)

    def __dask_tokenize__(self) -> Any:
        return COMPRESSED, self.path, self.facts["fingerprint"], self.level

    def __repr__(self) -> str:
        return f"<Compressed '{self.path}' {self.shape} {self.dtype}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[...], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return values as NumPy does for the whole array.

        Raises
        ------
        IndexError
            As NumPy.
        StoreError
            If a chunk of the index is missing or damaged.
        ReplacedError
            If another store has replaced this one before a chunk was read.
        """
        parts = per_axis(index, self.shape)
        (rows, first), box = parts[0], _box_of(parts[1:])
        samples, places = np.unique(rows, return_inverse=True)
        values = self.decoded(samples, box)
        if isinstance(first, slice):
            first = slice(None, None, -1 if first.step < 0 else 1)
        else:
            first = places.reshape(np.shape(first)) if np.ndim(first) else int(places[0])
        others = [moved(part, start) for (_, part), (start, _) in zip(parts[1:], box, strict=True)]
        return values[(first, *others)]

    @property
    def entries(self) -> Compressed:
        """What is encoded as a sample: samples, or tiles of large ones."""
        return self

    @property
    def n_components(self) -> int:
        """Most components that a cell keeps, whatever the `level`; 0 if there are none."""
        return int(self.codec.component.max(initial=-1)) + 1

    def read_bytes(self, index: Any = ...) -> int:
        """Return the peak memory in bytes of reading an index, result included.

        For a lazy array, a task needs this much for one chunk, see `chunks`. The components and means of the store are
        held in addition.

        Raises
        ------
        IndexError
            As NumPy.
        """
        (rows, _), *others = per_axis(index, self.shape)
        box = _box_of(others)
        chosen = self.chosen(box)
        return decoding_bytes(self, len(np.unique(rows)), box, chosen, self.at_once(chosen))

    def decoded(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples with ascending indices."""
        values = self.filled(samples, box)
        if self.has_gaps and values.size:
            values[self.mask(GAPS, samples, box)] = np.nan
        if self.has_infinities and values.size:
            both = self.mask(INFINITIES, samples, box)
            values[both[:, 0]], values[both[:, 1]] = np.inf, -np.inf
        return values

    def filled(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples with ascending indices, with the values that fill their gaps."""
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

    def mask(self, name: str, samples: Array, box: Region) -> Array:
        """Return a mask of a box of samples with ascending indices: (n, *lengths); of infinities (n, 2, *lengths)."""
        wide, inner, kinds = self.rows, (..., *(slice(*ends) for ends in box)), (2,) if name == INFINITIES else ()
        found = np.empty((len(samples), *kinds, *(stop - start for start, stop in box)), bool)
        for block in alike(samples // wide):
            number, some = int(samples[block][0]) // wide, samples[block] % wide
            found[block] = self._mask_of(name, number, int(some[-1]) + 1, kinds)[some][inner]
        return found

    def _mask_of(self, name: str, number: int, count: int, kinds: tuple[int, ...]) -> Array:
        """Return the mask of the first ``count`` samples of a chunk of codes, or of more."""
        last, held = self._masks.get(name, (-1, np.empty(0, bool)))
        if last == number and len(held) >= count:
            return held
        stored, wide = self.stored(name), self.rows
        shape = min(wide, len(self) - number * wide), *kinds, *self.shape[1:]
        read_into(stored, (slice(number, number + 1), slice(None)), coded := np.empty((1, stored.shape[1]), np.uint8))
        try:
            mask = decoded_mask(coded[0, : mask_bytes(shape)], shape, count)
        except ValueError as error:
            raise StoreError(f"'{self.path}' is damaged: '{name}' at {number} holds {error}: make it again") from error
        self._masks[name] = number, mask
        return mask

    @cached_property
    def _masks(self) -> dict[str, tuple[int, Array]]:
        # The last one of each name. Tiles of a sample that follow each other are often in one chunk.
        return {}

    def chosen(self, box: Region) -> Array:
        """Return the ascending rows of codes for a box of a sample."""
        chosen = self.codec.rows_of(box)
        return chosen if self.level is None else chosen[self.codec.component[chosen] < self.level]

    def at_once(self, chosen: Array) -> int:
        """Return how many samples are decoded at a time, with these rows of codes."""
        wide, itemsize = self.rows, self.stored("codes").dtype.itemsize
        return wide * max(1, _CODE_BYTES // (wide * itemsize * max(1, len(chosen))))

    def codes(self, chosen: Array, samples: Array) -> Array:
        """Return codes, not waves, for ascending rows and ascending indices of samples."""
        return self._codes_at(chosen, self.places(samples))

    def places(self, samples: Array) -> Array:
        """Return the positions of samples along codes and residuals; see ``breaks`` in ``storage/FORMAT.md``."""
        return placed(samples, self.facts.get("breaks", ()) if self.codec.waves else ())

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
        """Return the residuals in a box, at ascending positions of one chunk of codes."""
        found = self._integral_residual(places, box)
        if self.codec.noise is not None:
            found *= self.codec.noise.steps[tuple(slice(*ends) for ends in box)]
        return found

    def _integral_residual(self, places: Array, box: Region) -> Array:
        """Return them in units of the steps of noise, if there are any."""
        residual, along = self.stored("residual"), self.facts["differences"]
        if self.codec.interpolation is not None:  # such stores have no breaks, so positions are indices of samples
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


@dataclass(frozen=True, eq=False)
class TiledCompressed(Compressed):
    """A compressed store of large samples. Only the tiles that an index overlaps are decoded, as far as it does.

    Attributes
    ----------
    tiles : Tiles
        The division of samples. Codes and residuals are those of its entries.
    """

    tiles: Tiles = field(kw_only=True)

    @cached_property
    def entries(self) -> Compressed:
        """The tiles as samples."""
        facts = self.facts | {"breaks": [first * self.tiles.n_tiles for first in self.tiles.breaks]}
        kept = self.dtype, self.axes, facts, self.level, self.codec, self._group
        return Compressed(self.path, self.tiles.shape, *kept)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of a lazy array: a tile of the samples that lie together."""
        return min(GROUP, len(self)), *self.tiles.tile_shape

    def decoded(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples with ascending indices."""
        return self._of_tiles(self.entries.decoded, samples, box)

    def filled(self, samples: Array, box: Region) -> Array:
        """Return a box (n, *lengths) of samples with ascending indices, with the values that fill their gaps."""
        return self._of_tiles(self.entries.filled, samples, box)

    def _of_tiles(self, read: Callable[[Array, Region], Array], samples: Array, box: Region) -> Array:
        values = np.empty((len(samples), *(stop - start for start, stop in box)), self.dtype)
        for tile, inside, place in self._parts(box):
            values[(slice(None), *place)] = read(self.tiles.entries(tile, samples), inside)
        return values

    def read_bytes(self, index: Any = ...) -> int:
        """Return the peak memory in bytes of reading an index, see `Compressed.read_bytes`."""
        (rows, _), *others = per_axis(index, self.shape)
        box, n = _box_of(others), len(np.unique(rows))
        whole = 2 * n * math.prod(stop - start for start, stop in box) * self.dtype.itemsize
        most = 0
        # Tiles differ only in the part that is read.
        for inside in {part for _, part, _ in self._parts(box)}:
            chosen = self.entries.chosen(inside)
            most = max(most, decoding_bytes(self.entries, n, inside, chosen, self.entries.at_once(chosen)))
        return whole + most

    def _parts(self, box: Region) -> Iterator[tuple[int, Region, tuple[slice, ...]]]:
        """Yield the tiles of a box: their number, the part of each that is decoded, and its place in the box."""
        for tile, (core, region) in enumerate(zip(self.tiles.cores, self.tiles.regions, strict=True)):
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(core, box, strict=True)]
            if all(a < b for a, b in both):
                inside = tuple((a - o, b - o) for (a, b), (o, _) in zip(both, region, strict=True))
                yield tile, inside, tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(both, box, strict=True))


def _box_of(parts: Sequence[tuple[Any, Any]]) -> Region:
    """Return the smallest box of a sample that contains these indices, as `per_axis` returns them."""
    return tuple((int(min(taken)), int(max(taken)) + 1) if len(taken) else (0, 0) for taken, _ in parts)


@reopening
def open_compressed(path: str | os.PathLike[str], *, level: int | None = None) -> Compressed:
    """Open a compressed store as the original array.

    Parameters
    ----------
    path : path-like or URL
        A store that ``dpca encode`` made.
    level : int, optional
        Use at most this many of the first components of each cell, for a preview that reads fewer codes.

    Returns
    -------
    Compressed
        Has a shape and a dtype and supports NumPy's indexing. Components, means and metadata are already read.

    Raises
    ------
    StoreError
        If there is no such store, or it is damaged or of a newer version.
    DataError
        If ``level`` is not a positive integer.

    Examples
    --------
    >>> import dpca
    >>> photos = dpca.open_compressed("photos.zarr")
    >>> photos[17].shape  # one photograph
    (40, 36, 3)
    >>> photos[:20, 9:25, 9:25].shape  # a part of many; the rest is not decoded
    (20, 16, 16, 3)
    """
    if level is not None:
        level = whole_number(level, "level", 1, ", a number of components, or None for all")
    where = os.fspath(path)
    return compressed_in(open_group(path), where if "://" in where else os.path.abspath(where), level)


def compressed_in(group: zarr.Group, path: str, level: int | None = None) -> Compressed:
    """Return the compressed store in a group, as `open_compressed` does. ``path`` is its final name."""
    facts = root_facts(group)
    if facts.get("kind") != COMPRESSED:
        raise StoreError(f"'{path}' is not a compressed store: give one that 'dpca encode' made")
    if facts.get("version") != version_of(facts):
        raise StoreError(
            f"'{path}' is a compressed store of version {facts.get('version')} but this program reads version "
            f"{COMPRESSED_VERSION}, {TILED_VERSION} with tiles, {GAPS_VERSION} with missing values or steps of noise "
            f"and {INFINITIES_VERSION} with infinities: update dask-dpca"
        )
    codec, n = read_codec(group), int(facts["n_samples"])
    common = np.dtype(facts["dtype"]), tuple(facts["axes"]), facts, level, codec, group
    if "tile_shape" not in facts:
        return Compressed(path, (n, *codec.components.grid.sample_shape), *common)
    breaks = tuple(map(int, facts.get("breaks", ())))
    tiles = Tiles(n, tuple(map(int, facts["sample_shape"])), codec.components.grid.sample_shape, breaks)
    return TiledCompressed(path, (n, *tiles.sample_shape), *common, tiles=tiles)


def version_of(facts: Mapping[str, Any]) -> int:
    """Return the version of a store with these facts."""
    if facts.get(INFINITIES):
        return INFINITIES_VERSION
    if facts.get(GAPS) or facts.get("noise_share"):
        return GAPS_VERSION
    return TILED_VERSION if "tile_shape" in facts else COMPRESSED_VERSION


@lru_cache(maxsize=4)
def opened_once(path: str, fingerprint: str, level: int | None) -> Compressed:
    """Open a store once in each process."""
    opened = _opened_whole(path, fingerprint)
    return replace(opened, level=level)


@lru_cache(maxsize=4)
def _opened_whole(path: str, fingerprint: str) -> Compressed:
    opened = open_compressed(path)
    if opened.facts["fingerprint"] != fingerprint:
        raise ReplacedError(f"'{path}' was replaced since it was opened: open it again")
    return opened

"""The form of a compressed store: its arrays, their chunks, and reading and writing of its codec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dpca.codec.cells import CellCodec
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.quantized import Quantized
from dpca.codec.slabs import unfiltered
from dpca.codec.waves import RUN
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.storage.arrays.arrays import Codec, create_array, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import array_in, read_into, root_facts
from dpca.storage.errors import StoreError, one_line

# Samples, and rows of codes, in a chunk. Smaller chunks make reading one sample faster, since whole chunks are decoded;
# larger ones make reading one cell of many samples faster. Half as many of either cost 1 % more bytes each.
_ROWS, _CODES = 192, 128
_SAMPLES_BYTES = 2**26
# Samples of a chunk of residuals. There are as many residuals as values in the samples.
_RESIDUAL_ROWS = RUN
# If there are only residuals, a chunk of 2^26 bytes has 2^23 values, and smaller ones in proportion.
# While it is decoded, it takes ten times as many bytes.
_BLOCK_BYTES = 8
# Tiles of large samples whose bytes a chunk of codes may have.
_TILES = 8
# From this many positions, chunks of waves hold 1024 of them instead of 512. More positions compress better, fewer need
# less padding.
_MANY = 2**13
#: Name of the array of the masks of missing values.
GAPS = "gaps"
#: Name of the array of the masks of both infinities, which are gaps, too.
INFINITIES = "infinities"
#: Name of the array of the steps of residuals that follow the noise of each attribute.
NOISE = "noise_steps"
# The last four are left out where all ranks are zero.
_OF_POSITIONS = ("cell", "component", "exponent", "basis")
_INTEGERS = ("group", "rank", "mean", *_OF_POSITIONS)


@dataclass(frozen=True)
class StoreForm:
    """The layout of the arrays of a compressed store.

    Parameters
    ----------
    shape : tuple of int
        Shape of the stack.
    itemsize : int
        Bytes of one of its values.
    plain : bool
        Whether there are only residuals. Then larger chunks are smaller in total, since predictions end at chunks.
    tiled : bool
        Whether the samples are tiles of large samples. Then chunks are small, because memory is short.
    """

    shape: tuple[int, ...]
    itemsize: int
    plain: bool = False
    tiled: bool = False

    @property
    def _most(self) -> int:
        """Bytes of the samples of a chunk of codes, unless they are fewer than 16."""
        return _TILES * math.prod(self.shape[1:]) * self.itemsize if self.tiled else _SAMPLES_BYTES

    @property
    def rows(self) -> int:
        """Samples of a chunk of codes."""
        rows, sample = _ROWS, math.prod(self.shape[1:]) * self.itemsize
        if self.plain:
            most = max(1, self._most // _BLOCK_BYTES // math.prod(self.shape[1:]))
            return math.ceil(self.shape[0] / math.ceil(self.shape[0] / most))
        while rows > _RESIDUAL_ROWS and rows * sample > self._most:
            rows //= 2
        # The last chunk is padded with zeros, which take bytes too.
        even = math.ceil(self.shape[0] / math.ceil(self.shape[0] / rows))
        return math.ceil(even / _RESIDUAL_ROWS) * _RESIDUAL_ROWS

    @property
    def shard_rows(self) -> int:
        """Samples of a shard, the unit of writing."""
        sample = math.prod(self.shape[1:]) * self.itemsize
        return self.rows * max(1, min(4, 2 * self._most // (self.rows * sample)))

    def codes(self, n_positions: int, waves: bool) -> Layout:
        """Return the layout of codes (n_positions, n_samples), or of waves (n_positions, RUN, runs)."""
        high = _CODES * (4 if n_positions < _MANY else 8) if waves else _CODES
        width = max(1, -(-n_positions // high)) * high
        if waves:
            return Layout((high, 1, self.rows // RUN), (width, RUN, self.shard_rows // RUN))
        return Layout((high, self.rows), (width, self.shard_rows))

    @property
    def residual(self) -> Layout:
        """Layout of the residuals, which have the shape of the stack."""
        rows = self.rows if self.plain else _RESIDUAL_ROWS
        return Layout((rows, *self.shape[1:]), (self.shard_rows, *self.shape[1:]))


def write_quantized(group: zarr.Group, quantized: Quantized, grid: CellGrid, axes: Sequence[str]) -> None:
    """Write the arrays that codes are decoded with to the group of a compressed store.

    Raises
    ------
    OverflowError
        If an integer does not fit into 32 bits.
    """
    for name in _INTEGERS:
        values = np.asarray(getattr(quantized, name))
        if name in _OF_POSITIONS and not len(quantized.cell):
            continue
        names: Sequence[str] = axes[1:] if name == "mean" else (f"{name}_number",)
        names = ("position",) if name in ("cell", "component") else names
        values = to_integers(values, integer_dtype(float(np.abs(values).max(initial=0))))
        _write(group, name, values, names, mean_chunks(grid) if name == "mean" else (2**14,))
    if quantized.noise_share:
        _write(group, NOISE, quantized.noise_steps, axes[1:], codec="shuffled")
    if quantized.interpolated:
        _write(group, "weights", quantized.weights, ("level", "parity", "axis", "distance"))
    if isinstance(grid, LappedGrid):
        for axis, name in enumerate(axes[1 : 1 + grid.n_spatial]):
            _write(group, f"filter_{axis}", filter_along(grid, axis), (name, f"filtered_{name}"), codec="zstd")


def _write(
    group: zarr.Group,
    name: str,
    values: Array,
    axes: Sequence[str],
    chunks: tuple[int, ...] | None = None,
    codec: Codec = "packed",
) -> None:
    """Write an array as one shard, by default also one chunk."""
    chunks = chunks or values.shape
    shard = tuple(-(-max(1, n) // c) * c for n, c in zip(values.shape, chunks, strict=True))
    array = create_array(group, name, values.shape, values.dtype, Layout(chunks, shard), axes, codec=codec)
    if values.size:
        write_shard(array, (0,) * values.ndim, values)


def mean_chunks(grid: CellGrid) -> tuple[int, ...]:
    """Return the chunks of the mean: one for each channel, since each channel is smooth."""
    return (*grid.sample_shape[: grid.n_spatial], *(1 for _ in grid.channel_shape))


def filter_along(grid: LappedGrid, axis: int) -> Array:
    """Return the orthogonal float64 matrix F (length, length) with x = F @ z along an axis, for filtered samples z."""
    length, cell = grid.sample_shape[axis], grid.cell_shape[axis]
    half = max(grid.prefilter.half_widths(axis), default=0)
    line = LappedGrid((length,), (cell,), half) if half else CellGrid((length,), (cell,))
    return np.ascontiguousarray(unfiltered(line, np.eye(length)).T)


def longest_score(facts: dict[str, Any], waves: bool) -> float:
    """Return an upper limit of all scores: the length of the part of a centered sample that a component covers."""
    grid, (low, high) = grid_of(facts), facts["data_range"]
    reach = grid.max_features * (2**grid.n_spatial if facts["overlap"] else 1)
    return math.sqrt(reach * (RUN if waves else 1)) * float(high - low)


def residual_dtype(facts: dict[str, Any], least: float, *, plain: bool) -> np.dtype[Any]:
    """Return the type of residuals with ``least`` as the smallest step: values lie within some widths of their range.

    Raises
    ------
    OverflowError
        If they do not fit into 32 bits.
    """
    low, high = facts["data_range"]
    return integer_dtype(float(high - low + max(abs(low), abs(high)) if plain else 4 * (high - low)) / least)


def encoded_shape(facts: Mapping[str, Any]) -> Sequence[int]:
    """Return the shape of what is encoded at once: a sample, or a tile of a large one."""
    shape: Sequence[int] = facts.get("tile_shape", facts["sample_shape"])
    return shape


def grid_of(facts: dict[str, Any]) -> CellGrid:
    """Return the cells of a compressed store from its attributes."""
    shape, cell = tuple(map(int, encoded_shape(facts))), tuple(map(int, facts["cell_shape"]))
    return LappedGrid(shape, cell, int(facts["overlap"])) if facts["overlap"] else CellGrid(shape, cell)


def read_codec(group: zarr.Group) -> CellCodec:
    """Read the arrays that the codes of a store are decoded with.

    Raises
    ------
    StoreError
        If the store is damaged.
    """
    facts, arrays = root_facts(group), dict[str, Array]()
    try:
        more = (("weights", facts.get("interpolated")), (NOISE, facts.get("noise_share")))
        for name in (*_INTEGERS, *(name for name, there in more if there)):
            if name in _OF_POSITIONS and not arrays["rank"].any():
                arrays[name] = np.zeros(0, np.int16)
                continue
            stored = array_in(group, name)
            read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
            arrays[name] = values
        quantized = Quantized.of(arrays, facts)
        components = quantized.components(grid_of(facts), decoding_dtype(facts))
        cell, component = arrays["cell"].astype(int), arrays["component"].astype(int)
        noise = quantized.noise(facts["dtype"])
        return CellCodec(components, quantized.step, cell, component, quantized.waves, quantized.interpolation, noise)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StoreError(
            f"'{group.store_path}' is damaged or incomplete as a compressed store ({one_line(error)}): make it again"
        ) from error


def pixels_of(facts: dict[str, Any]) -> Pixels:
    """Return the type and range that decoded values are rounded to."""
    low, high = facts["clip"]
    return Pixels(np.dtype(facts["dtype"]), (low, high))


def decoding_dtype(facts: dict[str, Any]) -> np.dtype[Any]:
    """Return the type for decoding. Integers are rounded afterwards, so they need only a short type."""
    dtype = np.dtype(facts["dtype"])
    exact = dtype.kind == "f" or facts["residual_step"] is not None
    return np.dtype(np.float64) if exact else working_dtype(dtype)

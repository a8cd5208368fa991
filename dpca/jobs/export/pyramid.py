"""OME-Zarr images, version 0.5: all samples at several resolutions, for viewers such as napari and neuroglancer.

::

    out.ome.zarr/
        zarr.json       attributes {"ome": {"version": "0.5", "multiscales": [...], "omero": {...}}, "dpca": {...}}
        0/              (t, c, z, y, x), the samples; c and z if they have channels or depth
        1/, 2/, ...     every axis longer than 256 is halved, by means of two values
        name/           names of the samples

A shard holds whole samples of one resolution, and a chunk is a tile of one sample. One pass over the samples writes all
resolutions. A shard of large samples is a box of one. Then one pass writes the full resolution, and one each of the
others, from the one before. The specification is at https://ngff.openmicroscopy.org/0.5/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dpca.jobs.base.stored_samples import StoredSamples
from dpca.jobs.export.boxes import box_bytes, sizes_tried
from dpca.jobs.export.passes import ExportPass
from dpca.jobs.export.sample_files import SampleKind
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.arrays import choose_codec, create_array, write_shard
from dpca.storage.arrays.layout import CHANNEL, SHARD_BYTES, Layout, box_shape, boxes_of
from dpca.storage.arrays.reading import open_array, read_into

# Axes up to this length are not halved.
_SHORT = 256
_SHARDS_WANTED = 16
# Values of a chunk, 512 x 512 or 64 x 64 x 64: viewers load what is seen, and each chunk costs a request.
_CHUNK_VALUES = 2**18
# Values of a smaller resolution that are computed at a time from those of the one before.
_HALVED_AT_ONCE = 2**18
_COLORS = {"red": "FF0000", "green": "00FF00", "blue": "0000FF"}


@dataclass(frozen=True)
class PyramidLevel:
    """A resolution: the lengths (c, z, y, x) of a sample, and how often each of these axes was halved."""

    shape: tuple[int, ...]
    halvings: tuple[int, ...]


def pyramid_levels(kind: SampleKind) -> list[PyramidLevel]:
    """Return the resolutions of a sample, the full one first."""
    first = () if kind.channels is None else (kind.channels,)
    found = [PyramidLevel((*first, *kind.spatial), (0,) * len(kind.shape))]
    while max(found[-1].shape[len(first) :]) > _SHORT:
        before = found[-1]
        halved = [i >= len(first) and n > _SHORT for i, n in enumerate(before.shape)]
        shape = tuple(-(-n // 2) if half else n for n, half in zip(before.shape, halved, strict=True))
        found.append(PyramidLevel(shape, tuple(map(sum, zip(before.halvings, halved, strict=True)))))
    return found


def level_layout(level: PyramidLevel, kind: SampleKind, rows: int, part_bytes: int | None = None) -> Layout:
    """Return chunks of one sample, and shards of ``rows`` whole samples, or of boxes of ``part_bytes`` at most."""
    channel = () if kind.channels is None else (1,)  # viewers show channels one by one
    lengths = level.shape[len(channel) :]
    chunk = (*channel, *box_shape(lengths, _CHUNK_VALUES, (1,) * len(lengths)))
    shard = tuple(-(-length // c) * c for length, c in zip(level.shape, chunk, strict=True))
    if part_bytes is not None and math.prod(shard) * kind.dtype.itemsize > part_bytes:
        shard = box_shape(shard, part_bytes // kind.dtype.itemsize, chunk)
    return Layout((1, *chunk), (rows, *shard))


def rows_of_a_shard(given: StoredSamples, n: int) -> int:
    """Return the samples of a shard: within 128 MiB, at least 16 shards, and whole units of decoding if possible."""
    rows = max(1, min(SHARD_BYTES // given.sample_bytes, n // _SHARDS_WANTED))
    return max(rows // given.unit, 1) * given.unit if rows >= given.unit else rows


def create_pyramid(root: zarr.Group, n: int, kind: SampleKind, layouts: Sequence[Layout], first: Array) -> None:
    """Create the arrays of all resolutions; ``first`` is a sample or a part of one, for the choice of a codec."""
    codec = choose_codec(first)
    for number, (level, layout) in enumerate(zip(pyramid_levels(kind), layouts, strict=True)):
        axes = [axis["name"] for axis in _axes(kind)]
        create_array(root, str(number), (n, *level.shape), kind.dtype, layout, axes, codec=codec)


def ome_facts(kind: SampleKind, name: str, data_range: tuple[float, float] | None) -> dict[str, Any]:
    """Return the attribute ``ome`` of the group."""
    channel = () if kind.channels is None else (1.0,)
    own = [axis for axis, name in enumerate(kind.axes) if name != CHANNEL]
    (first, *steps), (origin, *starts) = zip(*(kind.spacing(axis)[:2] for axis in (-1, *own)), strict=True)
    scale, start = (first, *channel, *steps), (origin, *(0.0 for _ in channel), *starts)
    datasets = []
    for number, level in enumerate(pyramid_levels(kind)):
        times = [2.0**halved for halved in (0, *level.halvings)]
        # The middle of the first pixel lies between the pixels of which it is the mean.
        middle = [o + s * (t - 1) / 2 for o, s, t in zip(start, scale, times, strict=True)]
        transformations: list[dict[str, Any]] = [
            {"type": "scale", "scale": [s * t for s, t in zip(scale, times, strict=True)]}
        ]
        if any(middle):
            transformations.append({"type": "translation", "translation": middle})
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    multiscale = {"name": name, "axes": _axes(kind), "datasets": datasets, "type": "mean"}
    facts: dict[str, Any] = {"version": "0.5", "multiscales": [multiscale]}
    if data_range is not None:
        low, high = data_range
        window = {"min": low, "max": high, "start": low, "end": high}
        rgb = kind.channels == len(_COLORS)
        names = kind.channel_names or (_COLORS if rgb else [str(number) for number in range(kind.channels or 1)])
        known = [color.removeprefix("#").upper() for color in kind.channel_colors or ()]
        colors = known or (list(_COLORS.values()) if rgb else ["FFFFFF"] * len(names))
        named = zip(names, colors, strict=True)
        channels = [{"label": name, "color": color, "window": window, "active": True} for name, color in named]
        facts["omero"] = {"channels": channels}
    return facts


def _names(kind: SampleKind, channel: str) -> tuple[str, ...]:
    return (*(() if kind.channels is None else (channel,)), *("z", "y", "x")[-len(kind.spatial) :])


def _axes(kind: SampleKind) -> list[dict[str, str]]:
    """Return the axes of the image, as OME-Zarr describes them. Samples are times, so that viewers have a slider."""
    unit = kind.spacing(-1)[2]
    found = [{"name": "t", "type": "time", **({"unit": unit} if unit else {})}]
    own = iter(axis for axis, name in enumerate(kind.axes) if name != CHANNEL)
    for name in _names(kind, "c"):
        length = None if name == "c" else kind.spacing(next(own))[2]
        known = {} if length is None else {"unit": length}
        found.append({"name": name, "type": "channel" if name == "c" else "space", **known})
    return found


@dataclass(frozen=True, eq=False)
class PyramidExport(ExportPass):
    """Writes the shards of all resolutions to the group at the path ``store``."""

    store: str

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard of each resolution."""
        values = self.values(shard)
        if self.kind.channels is not None:
            values = np.ascontiguousarray(np.moveaxis(values, -1, 1))
        before = None
        for number, level in enumerate(pyramid_levels(self.kind)):
            if before is not None:
                axes = [i for i, times in enumerate(level.halvings) if times > before.halvings[i]]
                values = np.stack([halved(sample, axes) for sample in values])
            write_shard(open_array(f"{self.store}/{number}", mode="r+"), self.span(shard)[0], values)
            before = level
        return {}


@dataclass(frozen=True, eq=False)
class PyramidBoxes(ExportPass):
    """Writes boxes of samples of one resolution to the group at the path ``store``.

    Parameters
    ----------
    store : str
    number : int
        The resolution. All but the full one are means of the one before, which is complete.
    layout : Layout
        A shard is a box of one sample.
    """

    store: str
    number: int
    layout: Layout

    @property
    def boxes(self) -> list[Region]:
        """All boxes of a sample of this resolution."""
        return self.layout.boxes(pyramid_levels(self.kind)[self.number].shape)

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write a box of some samples."""
        region, (start, stop) = self.boxes[box], self.span(group)
        out = open_array(f"{self.store}/{self.number}", mode="r+")
        full = None if self.number else self._full(group, region)
        for row in range(start, stop):
            values = self._halved(row, region) if full is None else full[row - start]
            write_shard(out, (row, *(a for a, _ in region)), values[None])
        return {}

    def _full(self, group: int, region: Region) -> Array:
        """Return a box of samples in full resolution, channels first."""
        if self.kind.channels is None:
            return self.values(group, region)
        return np.ascontiguousarray(np.moveaxis(self.values(group, (*region[1:], region[0])), -1, 1))

    def _halved(self, row: int, region: Region) -> Array:
        """Return a box of one sample, in parts, because temporary arrays are several times as large."""
        before, level = pyramid_levels(self.kind)[self.number - 1 : self.number + 1]
        axes = [i for i, times in enumerate(level.halvings) if times > before.halvings[i]]
        finer, lengths = open_array(f"{self.store}/{self.number - 1}"), tuple(b - a for a, b in region)
        values = np.empty(lengths, self.kind.dtype)
        for part in boxes_of(lengths, _part(lengths, self.layout)):
            ends = [(o + a, o + b) for (a, b), (o, _) in zip(part, region, strict=True)]
            ends = [
                (2 * a, min(2 * b, n)) if i in axes else (a, b)
                for i, ((a, b), n) in enumerate(zip(ends, before.shape, strict=True))
            ]
            known = np.empty((1, *(b - a for a, b in ends)), values.dtype)
            read_into(finer, (slice(row, row + 1), *(slice(*each) for each in ends)), known)
            values[tuple(slice(*each) for each in part)] = halved(known[0], axes)
        return values


def _part(lengths: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Return the lengths of the parts of a box that are halved at a time."""
    return box_shape(lengths, _HALVED_AT_ONCE, layout.chunks[1:])


def choose_pyramid_boxes(given: StoredSamples, kind: SampleKind, n: int, budget: int) -> tuple[int, int]:
    """Return the samples of a task, and the most bytes of a box of one of them.

    Raises
    ------
    PlanError
    """
    full = pyramid_levels(kind)[0]
    for rows, most in sizes_tried(given, n):
        layout = level_layout(full, kind, 1, most)
        box = [min(a, b) for a, b in zip(layout.shards[1:], full.shape, strict=True)]
        shard, part = math.prod(box) * kind.dtype.itemsize, math.prod(_part(box, layout))
        last = box if kind.channels is None else [*box[1:], box[0]]
        copies = SHARD_COPIES + 1 + (0 if kind.channels is None else rows)
        # Two values along each axis, and their sums.
        need = box_bytes(given, rows, last) + copies * shard + 2 ** len(box) * part * (24 + kind.dtype.itemsize)
        if need <= budget:
            break
    require_memory(f"a box of {math.prod(box):,} attributes", need, budget)
    return rows, most


def halved(values: Array, axes: list[int]) -> Array:
    """Return means of two neighbors along some axes; the last one stays alone if a length is odd.

    Integers are summed exactly and rounded half up. Costs 8 bytes for each value.
    """
    exact = values.dtype.kind in "iu" and values.dtype.itemsize <= 4
    total: Array = values.astype(np.int64 if exact else np.float64)
    count: Array = np.ones((1,) * values.ndim, np.int64)
    for axis in axes:
        n = values.shape[axis]
        total = np.add.reduceat(total, np.arange(0, n, 2), axis)
        pairs = np.full(-(-n // 2), 2)
        pairs[-1] -= n % 2
        count = count * pairs.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    if exact:
        return ((2 * total + count) // (2 * count)).astype(values.dtype)
    mean = total / count
    return (mean if values.dtype.kind == "f" else np.rint(mean)).astype(values.dtype)


def pyramid_bytes(kind: SampleKind) -> int:
    """Return the bytes of temporary arrays for the smaller resolutions of one sample."""
    return 24 * math.prod(kind.shape)

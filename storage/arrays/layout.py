"""Chooses the chunks and shards of a stack, from its shape and the names of its axes alone.

::

    one shard = whole samples          one chunk = a tile of many samples

    sample 0   +----+----+----+        a chunk has `rows` samples of one tile, so the cells inside a
    sample 1   |    |    |    |        tile are read without decoding the rest of the images; all
      ...      +----+----+----+        channels of a pixel are in the same chunk
    sample n   |    |    |    |
               +----+----+----+        a shard is one file and the unit of writing

Rules, in order:

* The channel axis is never divided.
* A spatial axis of length L up to a limit (64 with two spatial axes, 32 with three, 16384 with one) is not
  divided.
* A longer axis is divided into chunks of a length c within a range ([32, 128] with two spatial axes, [16, 64]
  with three, [8192, 32768] with one). The length with the least padding, ``ceil(L / c) * c - L``, is chosen; among
  equals, the length nearest to the limit, then the shorter one. With cells, c must be a multiple of the cell length,
  or, for cells longer than the range, a divisor of it, so that a cell is read from as few chunks as possible.
* Rows in a chunk: the largest power of two that keeps a chunk within 4 MiB and 512 rows (4096 for samples
  under 4 KiB), and does not exceed the number of samples.
* Rows in a shard: a multiple of the rows in a chunk, within 128 MiB, and small enough for at least 16 shards if the
  stack is long enough; never less than the rows in a chunk.
* If JPEG files are kept, a chunk is one whole sample, whatever its length, and shards have as many samples.
* A sample of more than 128 MiB is divided into shards of one row: equal boxes of chunks, aligned with cells if
  possible, see `box_shape`.

::

    a large sample    +----+----+----+----+    4 shards of 2 x 2 chunks each
                      |    |    |    |    |
                      +----+----+====+====+
                      |    |    ||   |    |
                      +----+----+----+----+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import lcm, prod

from dpca.storage.errors import DataError

#: Usual names of an array of samples, in order of preference.
PREFERRED = ("samples", "images", "data")

Region = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of a sample."""

SAMPLE = "sample"
CHANNEL = "channel"

# Largest supported chunk of a foreign array, since reading one value requires the whole chunk in memory.
MAX_CHUNK = 4 << 30

_CHUNK_BYTES = 4 << 20
SHARD_BYTES = 128 << 20
_SHARDS_WANTED = 16
_TINY_SAMPLE = 4 << 10
_ROWS, _ROWS_TINY = 512, 4096

# number of spatial axes -> (longest undivided axis, shortest chunk, longest chunk)
_SPATIAL = {0: (1, 1, 1), 1: (16384, 8192, 32768), 2: (64, 32, 128), 3: (32, 16, 64)}
_SPATIAL_MORE = (16, 8, 32)

MOST_CHANNELS = 4

# Names of axes that are preferred as the sample axis, and names that never are the sample axis.
_COUNTED_FIRST = ("t", "time", "z")
_PIXEL = ("y", "x", "s")

# Names of the channel axis in other programs.
_CHANNEL_NAMES = ("c", "ch", CHANNEL, "channels", "rgb")


@dataclass(frozen=True)
class Layout:
    """Chunk and shard shape of an array, sample axis first.

    Parameters
    ----------
    chunks : tuple of int
        Shape of the unit of reading and decoding.
    shards : tuple of int
        Shape of the unit of writing, which is one file. Every entry is a multiple of the entry of `chunks`.
    """

    chunks: tuple[int, ...]
    shards: tuple[int, ...]

    @property
    def rows_per_shard(self) -> int:
        """Number of samples in a full shard."""
        return self.shards[0]

    def n_shards(self, n_samples: int) -> int:
        """Return the number of shards along the sample axis for `n_samples` samples."""
        return -(-n_samples // self.shards[0])

    def stored_values(self, shape: Sequence[int]) -> int:
        """Return the number of values in all chunks of an array, which are complete also at its ends."""
        return prod(-(-n // chunk) * chunk for n, chunk in zip(shape, self.chunks, strict=True))

    def boxes(self, sample_shape: Sequence[int]) -> list[Region]:
        """Return the boxes of a sample in its shards, in C order. There is one if shards have whole samples."""
        return boxes_of(sample_shape, self.shards[1:])

    def of_samples(self, sample_shape: Sequence[int]) -> Layout:
        """Return the layout of as many samples in a shard of which each is one chunk."""
        return Layout((1, *sample_shape), (self.shards[0], *sample_shape))

    def rows(self, shard: int, n_samples: int) -> tuple[int, int]:
        """Return the index of the first sample of a shard, and the index after its last sample."""
        start = shard * self.shards[0]
        return start, min(start + self.shards[0], n_samples)


def stacked_axes(names: Sequence[str], shape: Sequence[int]) -> tuple[str, ...] | None:
    """Return the names of all axes, including ``"sample"``, in the form that `dpca.storage.readers` require.

    The sample axis is the first of these with a length above 1: time, z, any other axis except y, x and channels, and
    finally channels. The channel axis is the TIFF axis s (red, green, blue of a pixel), or else c.

    Parameters
    ----------
    names : sequence of str
        One letter or word for each axis, in upper or lower case.
    shape : sequence of int
        Lengths of the axes.

    Returns
    -------
    tuple of str or None
        None if only y and x have a length above 1, since a single image is not a stack.
    """
    lower = [name.lower() for name in names]

    def rank(i: int) -> tuple[int, int]:
        name = lower[i]
        return (
            _COUNTED_FIRST.index(name) if name in _COUNTED_FIRST else len(_COUNTED_FIRST) + (name in ("c", CHANNEL)),
            i,
        )

    several = [i for i, n in enumerate(shape) if n > 1 and lower[i] not in _PIXEL]
    if not several:
        return None
    sample = min(several, key=rank)
    channel = next((name for name in ("s", "c") if name in lower and lower.index(name) != sample), None)
    called = [SAMPLE if i == sample else CHANNEL if name == channel else name for i, name in enumerate(lower)]
    return tuple(name if called.count(name) == 1 else f"{name}{i}" for i, name in enumerate(called))


def named_axes(names: Sequence[object]) -> tuple[str, ...] | None:
    """Return the names of the axes of a sample, with a channel axis renamed to ``"channel"``.

    Returns
    -------
    tuple of str or None
        None if two axes would have the same name, or one the name of the sample axis.
    """
    axes = tuple(CHANNEL if is_channel(str(name)) else str(name) for name in names)
    return axes if len({SAMPLE, *axes}) == 1 + len(axes) else None


def stack_axes(axes: Sequence[str], sample_shape: Sequence[int]) -> tuple[str, ...]:
    """Return the names of all axes of a stack, from those of one sample or of all axes, with samples on the first.

    Raises
    ------
    DataError
        If there is not one distinct name for each axis.
    """
    given = tuple(map(str, axes))
    own = given[1:] if len(given) == 1 + len(sample_shape) else given
    last = tuple(CHANNEL if is_channel(name) else name for name in own[-1:])
    named = (SAMPLE, *own[:-1], *last)
    if len(named) != 1 + len(sample_shape) or len(set(named)) != len(named):
        raise DataError(
            f"axes {tuple(axes)} do not match the sample shape {tuple(sample_shape)}: give one distinct name for each "
            f"axis"
        )
    return named


def given_axes(axes: Sequence[str], shape: Sequence[int]) -> tuple[str, ...]:
    """Return the names of all axes of an array, including ``"sample"``, from those given, such as ``"tczyx"``.

    They are names of the axes of one sample, of all axes including ``"sample"``, or of all axes, from which
    `stacked_axes` chooses the sample axis. An axis of channels is named ``"channel"``, unless the name occurs.
    """
    given = tuple(map(str, axes))
    if SAMPLE not in given:
        if len(given) == len(shape):
            return stacked_axes(given, shape) or (SAMPLE, *given[1:])
        given = (SAMPLE, *given)
    channels = [name for name in given if is_channel(name)]
    return tuple(CHANNEL if [name] == channels else name for name in given)


def is_channel(name: str) -> bool:
    """Return whether this is a usual name of an axis of channels."""
    return name.lower() in _CHANNEL_NAMES


def count_spatial(axes: Sequence[str]) -> int:
    """Return the number of spatial axes of a sample with these axes: all except the channel axis."""
    return sum(axis != CHANNEL for axis in axes)


def axes_for(sample_shape: Sequence[int]) -> tuple[str, ...]:
    """Return default names for the axes of one sample, from its shape.

    Parameters
    ----------
    sample_shape : sequence of int
        Shape without the sample axis.

    Returns
    -------
    tuple of str
        ``("feature",)`` for a vector, ``("y", "x")`` for two axes. With three or more axes, a last axis of length 4 or
        less is ``"channel"``, and the others are spatial: ``("y", "x", "channel")``, ``("z", "y", "x")``,
        ``("z", "y", "x", "channel")``, ``("t", "z", "y", "x")``. Further axes before these are ``"axis_1"``,
        ``"axis_2"``, ...
    """
    n = len(sample_shape)
    if n == 1:
        return ("feature",)
    tail: tuple[str, ...] = ()
    if n >= 3 and sample_shape[-1] <= MOST_CHANNELS:
        n, tail = n - 1, (CHANNEL,)
    spatial = ("t", "z", "y", "x")[-n:] if n else ()
    return (*(f"axis_{i + 1}" for i in range(n - len(spatial))), *spatial, *tail)


def choose_layout(
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str],
    cell_shape: Sequence[int] | None = None,
    shard_bytes: int | None = None,
    part_bytes: int | None = SHARD_BYTES,
) -> Layout:
    """Choose chunks and shards for a stack; the module documents the rules.

    Parameters
    ----------
    shape : sequence of int
        Shape of the stack, with samples on the first axis.
    itemsize : int
        Bytes of one value.
    axes : sequence of str
        Names of the axes, beginning with ``"sample"``. An axis ``"channel"`` is never divided.
    cell_shape : sequence of int, optional
        Cell lengths along the spatial axes (without the channel axis).
    shard_bytes : int, optional
        Most bytes of a shard of whole samples, to save memory. The default and upper limit is 128 MiB.
    part_bytes : int, optional
        Larger samples are divided into shards of at most this size, or of one chunk or cell. None divides no sample.

    Returns
    -------
    Layout
        A shard has whole samples, or a box of one sample. Whole samples exceed ``shard_bytes`` if one of them does.

    Raises
    ------
    ValueError
        If `axes` or `cell_shape` do not match `shape`.
    """
    if len(axes) != len(shape) or len(shape) < 2 or axes[0] != SAMPLE:
        raise ValueError(
            f"axes {tuple(axes)} do not match the shape {tuple(shape)}: "
            f"give one name for each axis, {SAMPLE!r} first and at least one more"
        )
    if itemsize < 1 or min(shape[1:]) < 1 or shape[0] < 0:
        raise ValueError(
            f"the shape {tuple(shape)} with {itemsize} bytes per value is empty: give lengths of at least 1"
        )
    n_samples = shape[0]
    spatial = [i for i in range(1, len(shape)) if axes[i] != CHANNEL]
    if cell_shape is not None and (len(cell_shape) != len(spatial) or min(cell_shape, default=1) < 1):
        raise ValueError(
            f"cell_shape {tuple(cell_shape)} does not match the axes {tuple(axes)}: give {len(spatial)} lengths of at "
            f"least 1"
        )
    limits = _SPATIAL.get(len(spatial), _SPATIAL_MORE)
    tile = list(shape[1:])
    for k, i in enumerate(spatial):
        tile[i - 1] = _chunk_length(shape[i], None if cell_shape is None else cell_shape[k], *limits)
    padded = [-(-length // c) * c for length, c in zip(shape[1:], tile, strict=True)]

    chunk_row, shard_row = prod(tile) * itemsize, prod(padded) * itemsize
    largest = min(shard_bytes or SHARD_BYTES, SHARD_BYTES)
    most = _ROWS_TINY if shard_row < _TINY_SAMPLE else _ROWS
    # The chunks of a large sample are small, so the limit on chunks alone would allow a huge shard.
    rows = _power_of_two(min(most, n_samples, _CHUNK_BYTES // chunk_row, largest // shard_row))
    times = max(1, min(largest // (rows * shard_row), n_samples // (_SHARDS_WANTED * rows)))
    if part_bytes is None or shard_row <= part_bytes:
        return Layout(chunks=(rows, *tile), shards=(rows * times, *padded))
    cells = list(tile)
    for k, i in enumerate(spatial):
        cells[i - 1] = tile[i - 1] if cell_shape is None else lcm(tile[i - 1], cell_shape[k])
    for units in (cells, tile):
        box = box_shape(padded, part_bytes // itemsize, units)
        # A cell without a common multiple with a chunk below this size is ignored.
        if prod(box) * itemsize <= part_bytes and all(b % c == 0 for b, c in zip(box, tile, strict=True)):
            break
    return Layout(chunks=(1, *tile), shards=(1, *box))


def box_shape(shape: Sequence[int], most: int, units: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the boxes that divide a sample: few, large, and as equal as possible.

    Parameters
    ----------
    shape : sequence of int
        Shape of a sample.
    most : int
        Largest number of values of a box.
    units : sequence of int
        Boxes are multiples of these lengths along each axis, or end with the sample. Useful units are those of chunks
        and cells. If a box of one unit has too many values, it is returned.
    """
    counts = [1] * len(shape)
    n_units = [-(-length // min(unit, length)) for length, unit in zip(shape, units, strict=True)]
    while True:
        per_box = [-(-n // count) for n, count in zip(n_units, counts, strict=True)]
        box = [min(n * min(u, s), s) for n, u, s in zip(per_box, units, shape, strict=True)]
        divisible = [i for i, n in enumerate(per_box) if n > 1]
        if prod(box) <= most or not divisible:
            return tuple(box)
        longest = max(divisible, key=lambda i: (box[i], -i))
        # The next number of boxes along this axis that makes them shorter.
        counts[longest] = -(-n_units[longest] // (per_box[longest] - 1))


def boxes_of(shape: Sequence[int], box: Sequence[int]) -> list[Region]:
    """Return the boxes (start, stop along each axis) of a grid that cover a sample, in C order."""
    along = ([(a, min(a + b, n)) for a in range(0, n, b)] for n, b in zip(shape, box, strict=True))
    return [tuple(region) for region in product(*along)]


def _chunk_length(length: int, cell: int | None, whole: int, shortest: int, longest: int) -> int:
    if length <= whole:
        return length
    lengths = range(shortest, min(longest, length) + 1)
    fitting: Sequence[int] = ()
    if cell is not None and cell < length:
        # A cell length without a multiple or a divisor in the range, such as a large prime, is ignored.
        fitting = [c for c in lengths if c % cell == 0] or [c for c in lengths if cell % c == 0]
    return min(fitting or lengths, key=lambda c: (-(-length // c) * c - length, abs(c - whole), c))


def _power_of_two(limit: int) -> int:
    """Return the largest power of two up to ``limit``, at least 1."""
    return 1 << (max(1, limit).bit_length() - 1)

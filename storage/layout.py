"""How a stack is cut into chunks and shards (pure: integers and names in, integers out).

::

    one shard = whole samples          one chunk = a tile of many samples

    sample 0   +----+----+----+        a chunk spans `rows` samples of one tile, so the cells inside a
    sample 1   |    |    |    |        tile are read without decoding the rest of the images; all the
      ...      +----+----+----+        channels of a pixel stay together
    sample n   |    |    |    |
               +----+----+----+        a shard is one file and the unit of writing

Rules, in order:

* The channel axis is never cut.
* A spatial axis of length L up to a limit (64 with two spatial axes, 32 with three, 16384 with one) is not
  cut.
* A longer axis is cut into chunks of a length within a range ([32, 128] with two spatial axes, [16, 64]
  with three, [8192, 32768] with one) that wastes the least padding, ``ceil(L / c) * c - L``; ties go to the
  length nearest to the limit, then to the shorter one. With cells, only lengths that are a multiple of the
  cell count, then (for cells longer than the range) those that divide it, so that a cell is read from as
  few chunks as possible.
* Rows in a chunk: the largest power of two that keeps a chunk within 4 MiB and 512 rows (4096 for samples
  under 4 KiB), and does not exceed the number of samples.
* Rows in a shard: a multiple of the rows in a chunk, within 128 MiB, and few enough for 16 shards in the
  stack where the stack is long enough; never less than one chunk of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

SAMPLE = "sample"
CHANNEL = "channel"

# largest chunk of anyone's array that is read: what must be held for a single value
MAX_CHUNK = 4 << 30

_CHUNK_BYTES = 4 << 20
SHARD_BYTES = 128 << 20
_SHARDS_WANTED = 16
_TINY_SAMPLE = 4 << 10
_ROWS, _ROWS_TINY = 512, 4096

# number of spatial axes -> (longest axis left whole, shortest chunk, longest chunk)
_SPATIAL = {0: (1, 1, 1), 1: (16384, 8192, 32768), 2: (64, 32, 128), 3: (32, 16, 64)}
_SPATIAL_MORE = (16, 8, 32)

_MOST_CHANNELS = 4

# what named axes count: samples before any other, pixels and their channels never
_COUNTED_FIRST = ("t", "time", "z")
_PIXEL = ("y", "x", "s")

# what others call an axis of channels
_CHANNEL_NAMES = ("c", "ch", CHANNEL, "channels", "rgb")


@dataclass(frozen=True)
class Layout:
    """Chunk and shard shape of an array, sample axis first.

    Parameters
    ----------
    chunks : tuple of int
        Shape of the unit of reading and decoding.
    shards : tuple of int
        Shape of the unit of writing, one file; every entry is a multiple of that of `chunks`.
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

    def rows(self, shard: int, n_samples: int) -> tuple[int, int]:
        """Return the first sample of a shard and the one after its last."""
        start = shard * self.shards[0]
        return start, min(start + self.shards[0], n_samples)


def stacked_axes(names: Sequence[str], shape: Sequence[int]) -> tuple[str, ...] | None:
    """Return names of all axes, ``"sample"`` among them, as `dpca.storage.readers` take them.

    Samples are counted by the first of these with several entries: time, z, any other axis but y, x and channels,
    channels. Samples of a pixel (red, green, blue) are its channels, and so are channels (c) where there are none.

    Parameters
    ----------
    names : sequence of str
        One letter or word an axis, in any case.
    shape : sequence of int

    Returns
    -------
    tuple of str or None
        None where only y and x have several entries: one image, no stack.
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
    """Return the names of a sample's axes as this package uses them: one of channels is called ``"channel"``.

    Returns
    -------
    tuple of str or None
        None where two axes would have one name, or one that of the samples' own.
    """
    axes = tuple(CHANNEL if str(name).lower() in _CHANNEL_NAMES else str(name) for name in names)
    return axes if len({SAMPLE, *axes}) == 1 + len(axes) else None


def count_spatial(axes: Sequence[str]) -> int:
    """Return how many of a sample's axes, which have these names, are axes of space: all but that of channels."""
    return sum(axis != CHANNEL for axis in axes)


def axes_for(sample_shape: Sequence[int]) -> tuple[str, ...]:
    """Name the axes of one sample by its shape alone.

    Parameters
    ----------
    sample_shape : sequence of int
        Shape without the sample axis.

    Returns
    -------
    tuple of str
        ``("feature",)`` for a vector, ``("y", "x")`` for two axes; from three axes on, a last axis of at
        most 4 is ``"channel"`` and the others are spatial: ``("y", "x", "channel")``, ``("z", "y", "x")``,
        ``("z", "y", "x", "channel")``, ``("t", "z", "y", "x")``; axes before these are ``"axis_1"``,
        ``"axis_2"``, ...
    """
    n = len(sample_shape)
    if n == 1:
        return ("feature",)
    tail: tuple[str, ...] = ()
    if n >= 3 and sample_shape[-1] <= _MOST_CHANNELS:
        n, tail = n - 1, (CHANNEL,)
    spatial = ("t", "z", "y", "x")[-n:] if n else ()
    return (*(f"axis_{i + 1}" for i in range(n - len(spatial))), *spatial, *tail)


def choose_layout(
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str],
    cell_shape: Sequence[int] | None = None,
    shard_bytes: int | None = None,
) -> Layout:
    """Choose chunks and shards for a stack; the rules are in the module's text.

    Parameters
    ----------
    shape : sequence of int
        Shape of the stack, samples first.
    itemsize : int
        Bytes of one value.
    axes : sequence of str
        Names of the axes, ``"sample"`` first; ``"channel"`` marks the axis that is never cut.
    cell_shape : sequence of int, optional
        Cell lengths along the spatial axes (without the channel axis).
    shard_bytes : int, optional
        Bytes of a shard at most, where memory is short; default 128 MiB.

    Returns
    -------
    Layout
        A shard covers whole samples, so one sample that is larger than ``shard_bytes`` makes a shard larger than
        that.

    Raises
    ------
    ValueError
        If `axes` or `cell_shape` do not fit `shape`.
    """
    if len(axes) != len(shape) or len(shape) < 2 or axes[0] != SAMPLE:
        raise ValueError(
            f"axes {tuple(axes)} do not name the axes of shape {tuple(shape)}: "
            f"give one name an axis, {SAMPLE!r} first and at least one more"
        )
    if itemsize < 1 or min(shape[1:]) < 1 or shape[0] < 0:
        raise ValueError(f"shape {tuple(shape)} with {itemsize} bytes a value holds nothing: every axis needs a length")
    n_samples = shape[0]
    spatial = [i for i in range(1, len(shape)) if axes[i] != CHANNEL]
    if cell_shape is not None and (len(cell_shape) != len(spatial) or min(cell_shape, default=1) < 1):
        raise ValueError(
            f"cell_shape {tuple(cell_shape)} does not fit axes {tuple(axes)}: give {len(spatial)} lengths of at least 1"
        )
    limits = _SPATIAL.get(len(spatial), _SPATIAL_MORE)
    tile = list(shape[1:])
    for k, i in enumerate(spatial):
        tile[i - 1] = _chunk_length(shape[i], None if cell_shape is None else cell_shape[k], *limits)
    padded = [-(-length // c) * c for length, c in zip(shape[1:], tile, strict=True)]

    chunk_row, shard_row = prod(tile) * itemsize, prod(padded) * itemsize
    largest = min(shard_bytes or SHARD_BYTES, SHARD_BYTES)
    most = _ROWS_TINY if shard_row < _TINY_SAMPLE else _ROWS
    # the tile of a large sample is small, so many rows fit a chunk that would make a huge shard: both
    # limits count
    rows = _power_of_two(min(most, n_samples, _CHUNK_BYTES // chunk_row, largest // shard_row))
    times = max(1, min(largest // (rows * shard_row), n_samples // (_SHARDS_WANTED * rows)))
    return Layout(chunks=(rows, *tile), shards=(rows * times, *padded))


def _chunk_length(length: int, cell: int | None, whole: int, shortest: int, longest: int) -> int:
    if length <= whole:
        return length
    lengths = range(shortest, min(longest, length) + 1)
    fitting: Sequence[int] = ()
    if cell is not None and cell < length:
        # a cell with no multiple and no divisor in the range (a long prime) restricts nothing
        fitting = [c for c in lengths if c % cell == 0] or [c for c in lengths if cell % c == 0]
    return min(fitting or lengths, key=lambda c: (-(-length // c) * c - length, abs(c - whole), c))


def _power_of_two(limit: int) -> int:
    """Largest power of two that is not above `limit`, at least 1."""
    return 1 << (max(1, limit).bit_length() - 1)

"""Which axis of a file with named axes counts the samples, and what the others are called."""

from __future__ import annotations

from collections.abc import Sequence

from storage.layout import CHANNEL, SAMPLE

_FIRST = ("t", "time", "z")  # what is counted as samples before any other axis
_PIXEL = ("y", "x", "s")


def stacked_axes(names: Sequence[str], shape: Sequence[int]) -> tuple[str, ...] | None:
    """Return names of all axes, ``"sample"`` among them, as `storage.readers.raw.ArrayReader` takes them.

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
        return (_FIRST.index(name) if name in _FIRST else len(_FIRST) + (name in ("c", CHANNEL)), i)

    several = [i for i, n in enumerate(shape) if n > 1 and lower[i] not in _PIXEL]
    if not several:
        return None
    sample = min(several, key=rank)
    channel = next((name for name in ("s", "c") if name in lower and lower.index(name) != sample), None)
    called = [SAMPLE if i == sample else CHANNEL if name == channel else name for i, name in enumerate(lower)]
    return tuple(name if called.count(name) == 1 else f"{name}{i}" for i, name in enumerate(called))

"""How scores near zero are rounded: coarsely for fewer bits or finely for less error, with one step for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dpca.codec.quantize import ROUNDING
from dpca.kernels.types import Array

# By what the least scores that are kept are multiplied, where a sample may have a larger error.
_COARSER = (3.0, 2.4, 1.9, 1.6, 1.4, 1.2)


class DeadZone(NamedTuple):
    """Which scores become 0.

    Attributes
    ----------
    least : array (n_positions,), optional
        Scores of fewer steps do.
    rounding : float
        As do those of fewer than 1 minus this; of others, what is beyond the integer by that becomes the next one.
    """

    least: Array | None = None
    rounding: float = ROUNDING


#: Scores below .6 steps become 0.
USUAL = DeadZone()
#: Each score becomes the nearest integer: of all, this leaves the least error, some 10 to 20 % less than `ROUNDING`.
NEAREST = DeadZone(None, 0.5)


def from_coarse_to_fine(least: Array | None) -> Iterator[DeadZone]:
    """Yield dead zones with fewer and fewer scores that become 0, `NEAREST` the last."""
    if least is not None:
        yield from (DeadZone(times * least) for times in _COARSER)
    yield DeadZone(least)
    yield NEAREST

"""Rounding of scores near zero: a wide dead zone needs fewer bits, a narrow one has less error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dpca.codec.quantize import ROUNDING
from dpca.kernels.algebra.types import Array

# Factors of the threshold `DeadZone.least`, for samples that may have a larger error.
_COARSER = (3.0, 2.4, 1.9, 1.6, 1.4, 1.2)


class DeadZone(NamedTuple):
    """The range of scores that become 0.

    Attributes
    ----------
    least : array (n_positions,), optional
        Scores below this number of steps become 0.
    rounding : float
        Scores below 1 - rounding steps become 0. Others become the integer part of their magnitude plus rounding.
    """

    least: Array | None = None
    rounding: float = ROUNDING


#: Scores below 0.6 steps become 0.
USUAL = DeadZone()
#: Each score becomes the nearest integer. This has the least error, 10 to 20 % less than `ROUNDING`.
NEAREST = DeadZone(None, 0.5)


def from_coarse_to_fine(least: Array | None) -> Iterator[DeadZone]:
    """Yield dead zones from the widest to the narrowest, `NEAREST`."""
    if least is not None:
        yield from (DeadZone(times * least) for times in _COARSER)
    yield DeadZone(least)
    yield NEAREST

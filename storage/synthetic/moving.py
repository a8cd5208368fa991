"""Moving fields: traveling waves of different speeds, for methods that use the order of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca.storage.synthetic.exact import BELL_MOST, Floats, cosine
from dpca.storage.synthetic.model import ImageModel

_WAVES = 6
_PHASES = 1024
# Standard deviation of the first wave, and the ratio between consecutive waves.
_FIRST, _FURTHER = 4.0, 0.75
# Ratio between the two modes of a wave, so that components have distinct variances.
_SECOND = 0.87


@dataclass(frozen=True)
class Moving(ImageModel):
    """A field with any axes that moves from sample to sample, `float32`. For other parameters, see `ImageModel`.

    Six waves travel through the field. Each consists of two modes, a quarter of a wavelength apart, with periodic
    weights. Wave j (from 0) has a period of ``period / (1 + 0.61803 j)`` samples. Methods that use the order of the
    samples find these periods, and averages over many periods show the components. The noise is white.

    Attributes
    ----------
    period : float
        Period of the first wave in samples, at least 4.
    """

    order: str = "time"
    period: float = 64.0

    orders: ClassVar[tuple[str, ...]] = ("time",)
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)
    n_modes = 2 * _WAVES
    noise = 0.5
    weight_variance = BELL_MOST**2 / 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(4 <= self.period <= 2**20, f"the period is {self.period}: give 4 to {2**20:,} samples")

    def design(self) -> tuple[Floats, Iterable[Floats]]:
        """Return a slope, and the two modes of each wave."""
        shape = self.sample_shape
        grids = [
            ((2 * np.arange(n, dtype=np.float64) + 1) / (2 * n)).reshape([-1] + [1] * (len(shape) - 1 - i))
            for i, n in enumerate(shape)
        ]
        return np.zeros(shape) + 15 + 6 * grids[0], self._modes(grids)

    def _modes(self, grids: Sequence[Floats]) -> Iterator[Floats]:
        """Yield the two modes of each wave."""
        size, random = _FIRST, self.random(_WAVES)
        for wave in range(_WAVES):
            # An integer number of periods along each axis makes all modes orthogonal.
            turns = float(random[wave]) + np.zeros(self.sample_shape)
            for axis, (grid, n) in enumerate(zip(grids, self.sample_shape, strict=True)):
                number = (wave // 2 + 1) if (axis + wave) % 2 else (wave % 3) * (n > 2)
                turns += number * grid
            yield size * cosine(turns)
            yield size * _SECOND * cosine(turns - 0.25)
            size *= _FURTHER

    def weights(self, start: int, stop: int, drawn: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return cosines and sines of the phase of each wave."""
        circle = np.rint(BELL_MOST * cosine(np.arange(_PHASES) / _PHASES)).astype(np.float32)
        time = np.arange(start, stop, dtype=np.uint64)[:, None]
        # Fractions of a turn in 64 bits, with the wrap-around of integers. A pace may exceed one turn per sample.
        paces = [int(2**64 / self.period * (1 + 0.61803 * wave)) % 2**64 for wave in range(_WAVES)]
        phases = ((time * np.array(paces, np.uint64)) >> np.uint64(54)).astype(np.int64)
        both = np.stack([circle[phases], circle[(phases - _PHASES // 4) % _PHASES]], axis=-1)
        return both.reshape(stop - start, self.n_modes)

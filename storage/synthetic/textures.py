"""Natural textures: cosines with a power that decreases with the square of the frequency, and a fine grain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.layout import CHANNEL
from dpca.storage.synthetic.exact import Floats, cosine
from dpca.storage.synthetic.model import ImageModel

# Standard deviation of the brightness of an image, in gray levels.
_BRIGHTNESS = 18.0
# If there are channels, every fifth mode changes colors.
_COLORED = 5
# The grain is shorter than the image by at least this factor.
_FINER = 16


@dataclass(frozen=True)
class Textures(ImageModel):
    """Textures with the statistics of natural images along any axes, `uint8`. For the parameters, see `ImageModel`.

    Modes are products of cosines, which are the components of stationary images. Amplitudes decrease with frequency, as
    in natural images (Field 1987), at a rate for each axis that the seed determines. The noise is a grain of octaves of
    equal variance, finer than the modes. At the frequencies of the modes it is white, so it does not change the
    components.
    """

    n_modes = 16
    noise = 12.0
    grain_arrays = 4

    def design(self) -> tuple[Floats, Iterable[Floats]]:
        """Return a constant color, and cosines."""
        lengths = self._lengths
        pace = [0.7 + 0.6 * float(value) for value in self.random(3 + len(lengths))[3:]]
        waves = _waves(lengths, self.n_modes)
        steep = sorted((_square(pace, wave), wave) for wave in waves)
        color = np.resize(110 + 40 * self.random(3), self.sample_shape[-1:] if self._has_channels else 1)
        return np.zeros(self.sample_shape) + color, self._modes(steep[: self.n_modes])

    def _modes(self, steep: Sequence[tuple[float, tuple[int, ...]]]) -> Iterator[Floats]:
        """Yield cosines, and zeros if a small sample has fewer."""
        for number, (square, wave) in enumerate(steep):
            amplitude = _BRIGHTNESS / (1 + math.sqrt(square)) * math.sqrt(2 ** sum(k > 0 for k in wave))
            yield self._of_channels(amplitude * self._cosines(wave), number % _COLORED == _COLORED - 1)
        for _ in range(len(steep), self.n_modes):
            yield np.zeros(self.sample_shape)

    def grain(self, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sums of boxes of 1, 2, 4, ... neighbors along each axis, of equal variance."""
        lengths, channels = self._lengths, self.sample_shape[-1] if self._has_channels else 1
        finest = min((n for n in lengths if n > 1), default=1)
        octaves = max(1, (finest // _FINER).bit_length())
        total = np.zeros_like(sequence)
        for octave in range(octaves):
            # Distant segments of one sequence are independent.
            boxes = np.roll(sequence, octave * (len(sequence) // octaves))
            for channel in range(1, channels):
                boxes += np.roll(sequence, octave * (len(sequence) // octaves) - channel)
            lag = channels
            for n in reversed(lengths):
                for double in range(octave if n > 1 else 0):
                    boxes += np.roll(boxes, -lag * 2**double)
                lag *= n
            boxes *= math.isqrt(2 ** (len(lengths) * (octaves - 1 - octave)))
            total += boxes
        return total

    @property
    def _has_channels(self) -> bool:
        return self.axes[-1] == CHANNEL

    @property
    def _lengths(self) -> tuple[int, ...]:
        """Lengths of the spatial axes."""
        return self.sample_shape[:-1] if self._has_channels else self.sample_shape

    def _cosines(self, wave: Sequence[int]) -> Floats:
        product = np.ones(())
        for k, n in zip(wave, self._lengths, strict=True):
            product = product[..., None] * cosine(k * (2 * np.arange(n, dtype=np.float64) + 1) / (4 * n))
        return product

    def _of_channels(self, mode: Floats, colored: bool) -> Floats:
        if not self._has_channels:
            return mode
        weights = np.resize([0.6, 0.05, -0.6] if colored else [1.0, 0.95, 0.85], self.sample_shape[-1])
        colored_mode: Floats = mode[..., None] * weights
        return colored_mode


def _square(pace: Sequence[float], wave: Sequence[int]) -> float:
    total = 0.0
    for p, k in zip(pace, wave, strict=True):
        total += (p * k) * (p * k)  # `sum` compensates rounding since Python 3.12
    return total


def _waves(lengths: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the waves that can be among the ``most`` lowest. Each other wave exceeds at least this number of waves."""
    if not lengths:
        yield ()
        return
    for k in range(min(lengths[0], most)):
        for others in _waves(lengths[1:], most // (k + 1)):
            yield k, *others

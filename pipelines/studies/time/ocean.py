"""The embedded source: ocean waves of one wind by Tessendorf (2001). Frames are computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import Coordinate, Coordinates
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest

# Increased whenever the same parameters give other values, so that stores of older values are not reused.
_RECIPE = 1
_GRAVITY = 9.81
# Expected standard deviation of the heights, in meters.
_HEIGHT = 0.5
#: Distance of two frames, in seconds.
STEP = 0.5


class Ocean(ArrayReader):
    """Heights (frames, size, size), float32, in meters, of a patch of 100 m under a wind of 30 m/s along x.

    Heights are sums of waves of the spectrum of Phillips, exp(-1 / (k L)^2) / k^4 cos^2 of the angle to the wind, L =
    wind^2 / g, without waves against the wind. Amplitudes and phases are random. Each wave travels by the dispersion of
    deep water, omega^2 = g k (Tessendorf 2001, equations 40, 42 and 43). The patch is periodic.

    Parameters
    ----------
    frames, size, seed : int

    Notes
    -----
    A frame costs one Fourier transform. The reader and its parts are small to pickle.
    """

    kind = "ocean"

    def __init__(self, frames: int = 300, size: int = 100, seed: int = 0) -> None:
        if frames < 2 or size < 8:
            raise DataError(
                f"{frames} frames of {size} x {size} are too few or too small: use at least 2 frames of 8 x 8"
            )
        along = {
            "time": Coordinate(("time",), STEP * np.arange(frames), {"units": "s"}),
            **{axis: Coordinate((axis,), 100 / size * np.arange(size), {"units": "m"}) for axis in "yx"},
        }
        dims = ("time", "y", "x")
        super().__init__(
            "embedded ocean", (frames, size, size), np.dtype(np.float32), None, Coordinates(dims, along, {"units": "m"})
        )
        self._parameters = size, seed

    def fingerprint(self) -> str:
        """Return a hash of everything that determines the values."""
        return digest([self.kind, _RECIPE, len(self), *self._parameters])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function that computes these frames."""
        return partial(ocean_frames, np.asarray(indices), *self._parameters)


def ocean_frames(numbers: NDArray[Any], size: int, seed: int) -> NDArray[np.float32]:
    """Compute the frames of these numbers; see `Ocean`."""
    rng = np.random.default_rng(seed)
    line = 2 * np.pi * np.fft.fftfreq(size, 100 / size)
    x, y = np.meshgrid(line, line)
    k = np.hypot(x, y)
    k[0, 0] = np.inf
    power = np.where(x > 0, np.exp(-1 / (k * 30.0**2 / _GRAVITY) ** 2) / k**4 * (x / k) ** 2, 0)
    waves = np.sqrt(power / 2) * (rng.normal(size=k.shape) + 1j * rng.normal(size=k.shape))
    k[0, 0] = 0
    # The real part of a sum of waves with E |h|^2 = power has half of that as its variance.
    speeds, scale = np.sqrt(_GRAVITY * k), size**2 * _HEIGHT / np.sqrt(power.sum() / 2)
    frames = np.empty((len(numbers), size, size), np.float32)
    for place, number in enumerate(numbers):
        frames[place] = np.fft.ifft2(waves * np.exp(1j * speeds * STEP * number)).real * scale
    return frames

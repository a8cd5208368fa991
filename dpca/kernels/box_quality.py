"""The quality of large samples, box by box: the windows of SSIM extend beyond the box of their first pixel.

::

    +-------------+---+    a box of pixels
    |   box       | h |    h  the halo: pixels of the windows that begin in the box
    +-------------+ h |
    | h h h h h h   h |
    +-----------------+
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.quality import WINDOW, has_ssim, mse_per_sample, ssim_per_sample


def with_halo(core: Region, shape: Sequence[int], n_spatial: int) -> Region:
    """Return a box with the pixels of all SSIM windows that begin in it."""
    halo = [WINDOW - 1 if axis < n_spatial and n_spatial > 1 else 0 for axis in range(len(shape))]
    return tuple((a, min(b + more, n)) for (a, b), more, n in zip(core, halo, shape, strict=True))


def windows_in(core: Region, shape: Sequence[int], n_spatial: int) -> tuple[Region, int]:
    """Return the pixels of all SSIM windows that begin in a box, and their number; 0 if there are none."""
    starts = [(a, min(b, n - WINDOW + 1)) for (a, b), n in zip(core[:n_spatial], shape, strict=False)]
    count = math.prod(max(0, b - a) for a, b in (*starts, *core[n_spatial:]))
    return (*((a, b + WINDOW - 1) for a, b in starts), *core[n_spatial:]), count


@dataclass(frozen=True)
class BoxQuality:
    """The quality of a box of samples, as sums that are added up over all boxes.

    Parameters
    ----------
    shape : tuple of int
        Shape of a sample.
    core : Region
        The box.
    n_spatial : int
    width : float
        Width of the data range.
    ssim : bool
        Whether to measure SSIM. It is left out if it is not defined.
    """

    shape: tuple[int, ...]
    core: Region
    n_spatial: int
    width: float
    ssim: bool

    @property
    def windows(self) -> tuple[Region, int]:
        """The pixels of all SSIM windows that begin in the box, and their number; 0 if none are measured."""
        if not (self.ssim and has_ssim(self.shape, self.n_spatial)):
            return self.core, 0
        return windows_in(self.core, self.shape, self.n_spatial)

    @property
    def needed(self) -> Region:
        """The pixels that are compared."""
        return with_halo(self.core, self.shape, self.n_spatial) if self.windows[1] else self.core

    def sums(self, x: Array, y: Array, region: Region) -> dict[str, Array]:
        """Return sums (n,) of squared errors and of similarities, for a region of samples that has what is needed."""
        place, (windows, count) = inside(self.core, region), self.windows
        found = {"mse": mse_per_sample(x[place], y[place], data_range=self.width) * math.prod(x[place].shape[1:])}
        if self.ssim and has_ssim(self.shape, self.n_spatial):
            found["ssim"] = np.zeros(len(x))
        if count:
            seen = inside(windows, region)
            found["ssim"] += ssim_per_sample(x[seen], y[seen], data_range=self.width, n_spatial=self.n_spatial) * count
        return found


def means_of_boxes(parts: Sequence[Mapping[str, Array]], shape: tuple[int, ...], n_spatial: int) -> dict[str, Array]:
    """Return the quality (n,) of samples from the sums of all their boxes."""
    counts = {"mse": math.prod(shape), "ssim": windows_in(tuple((0, s) for s in shape), shape, n_spatial)[1]}
    return {name: np.sum([part[name] for part in parts], axis=0) / counts[name] for name in parts[0]}


def inside(box: Region, region: Region) -> tuple[slice, ...]:
    """Return the place of a box in samples of a region."""
    return (slice(None), *(slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True)))

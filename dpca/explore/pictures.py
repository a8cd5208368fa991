"""What is known of samples, and how they become pictures: slice, size, contrast and colors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from dpca.explore.originals import LargeSample
from dpca.kernels.algebra.types import Array
from dpca.plots.numbers import shape_words
from dpca.plots.overviews import thinned
from dpca.plots.panels import Blend, intensity, panel, range_of, shown_range
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.ranges import checked_range

#: Contrasts, name to label.
CONTRASTS = {"percentiles": "automatic", "full": "full range", "limits": "limits"}
#: Colors of gray pictures, name to label.
COLORS = {
    "gray": "gray",
    "inverted": "gray, inverted",
    "viridis": "viridis",
    "cividis": "cividis",
    "magma": "magma",
    "turbo": "turbo",
}


@dataclass(frozen=True)
class Contrast:
    """The values of black and white, and the colors between them.

    Parameters
    ----------
    kind : {"percentiles", "full", "limits"}
        Percentiles of a picture, see `dpca.plots.panels.shown_range`; the data range, or that of the picture if there
        is none; or given limits.
    limits : tuple of float
        Values of black and white of the kind "limits".
    colors : str
        A name in `COLORS`, for gray pictures.
    channel : int or None
        The only channel that is shown; None for all.
    """

    kind: str = "percentiles"
    limits: tuple[float, float] = (0.0, 1.0)
    colors: str = "gray"
    channel: int | None = None

    def bounds(
        self, pictures: Sequence[Array], dtype: np.dtype[Any], stated: tuple[float, float] | None
    ) -> tuple[float, float]:
        """Return the values of black and white of some pictures together."""
        if self.kind == "limits":
            return self.limits
        return range_of(pictures, stated) if self.kind == "full" else shown_range(pictures, dtype, stated)

    @classmethod
    def with_limits(cls, text: str, colors: str, channel: int | None = None) -> Contrast:
        """Return the contrast with limits that a visitor typed, such as "0, 4095".

        Raises
        ------
        DataError
            If they are not two finite numbers, the lower first.
        """
        try:
            low, high = (float(part) for part in text.split(","))
        except ValueError as error:
            raise DataError(
                f"the limits are {text!r}: give two numbers, the lower first, for example 0, 4095"
            ) from error
        return cls("limits", checked_range((low, high)), colors, channel)


#: The default contrast.
PERCENTILES = Contrast()


@cache
def palette(colors: str) -> Array | None:
    """Return the colors (256, 3) in 0..1 of a name in `COLORS`; None for gray."""
    if colors == "gray":
        return None
    if colors == "inverted":
        return np.repeat(np.linspace(1, 0, 256)[:, None], 3, axis=1)
    from bokeh import palettes  # imported here, because the first picture does not wait for it

    named = getattr(palettes, f"{colors.capitalize()}256")
    return np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in named])


@dataclass(frozen=True)
class SourceFacts:
    """Metadata of the samples."""

    path: str
    n_samples: int
    sample_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    """Axes of one sample."""
    data_range: tuple[float, float] | None
    channel_names: tuple[str, ...] = ()
    """Names of two or more channels, empty if they are not known."""
    channel_colors: tuple[str, ...] = ()
    """Their colors, such as ``"#00ff00"``, empty if they are not known."""
    flipped: tuple[int, ...] = ()
    """Axes of a sample with ascending latitudes. Pictures show the north at the top."""

    def with_coordinates(self, along: Coordinates | None) -> SourceFacts:
        """Return these facts with the channels and the latitudes in the coordinates of a sample."""
        if along is None or len(along.dims) != len(self.sample_shape):
            return self
        flipped, count = along.northward, self.sample_shape[-1] if self.axes[-1] == CHANNEL else 1
        if count < 2 or along.dims[-1] != CHANNEL:
            return replace(self, flipped=flipped)
        names, colors = along.arrays.get(CHANNEL), along.channel_colors
        known = () if names is None else tuple(map(str, names.values.tolist()))
        return replace(
            self,
            flipped=flipped,
            channel_names=known or tuple(f"channel {number}" for number in range(len(colors or ()))),
            channel_colors=tuple(colors or ()),
        )

    @property
    def n_planes(self) -> int:
        """Number of images in a sample: the slices of a volume; 1 for an image or a curve."""
        return math.prod(self.sample_shape[: self._leading])

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.sample_shape) * self.dtype.itemsize

    @property
    def description(self) -> str:
        """A description in one line."""
        return f"{self.n_samples:,} samples of {shape_words(self.sample_shape)} {self.dtype}"

    def plane(self, sample: Array, number: int | None) -> Array:
        """Return an image of a sample, with its channels: slice ``number``, or the maximum of all slices if None."""
        if self._leading == 0:
            return sample
        planes = sample.reshape(-1, *sample.shape[self._leading :])
        shown: Array = np.fmax.reduce(planes) if number is None else planes[min(number, len(planes) - 1)]
        return shown

    def picture(
        self, sample: Array | LargeSample, number: int | None, longest: int, channel: int | None = None
    ) -> Array:
        """Return `plane` as a panel of at most ``longest`` rows and columns, with the values of the sample.

        It is that of one channel, or else has all channels if their colors are known.
        """
        if isinstance(sample, LargeSample):
            shown = sample.plane(number, self.plane_axes, longest)
        else:
            # It is thinned before any computation, because an image of 1 GB has 8 GB as float64.
            shown = thinned(self.plane(sample, number), longest)
        shown = self.upright(shown)
        if channel is not None and self.channel_names:
            return panel(shown[..., min(channel, len(self.channel_names) - 1)], self.plane_axes[:-1])
        return panel(shown, self.plane_axes, every_channel=bool(self.channel_colors))

    def upright(self, image: Array) -> Array:
        """Return an image of a sample with the north at the top."""
        return np.flip(image, tuple(axis - self._leading for axis in self.flipped if axis >= self._leading))

    def scaled(
        self, pictures: Sequence[Array], contrast: Contrast
    ) -> tuple[list[Array], tuple[float, float], tuple[float, float]]:
        """Return pictures for `intensity`, with channels in their colors, its range, and that of the values."""
        if not self.channel_colors or any(picture.ndim < 3 for picture in pictures):
            bounds = contrast.bounds(pictures, self.dtype, self.data_range)
            return list(pictures), bounds, bounds

        def bounds_of(channel: int) -> tuple[float, float]:
            return contrast.bounds([picture[..., channel] for picture in pictures], self.dtype, self.data_range)

        blend = Blend.of(self.channel_colors, bounds_of)
        return (
            [blend(picture) for picture in pictures],
            (0.0, 1.0),
            (float(blend.bounds[:, 0].min()), float(blend.bounds[:, 1].max())),
        )

    def tinted(self, picture: Array) -> Array:
        """Return an eigenimage with channels as the sum of their colors."""
        return Blend.of(self.channel_colors)(picture) if self.channel_colors else picture

    def thumbnail(
        self, sample: Array | LargeSample, number: int | None, longest: int, contrast: Contrast = PERCENTILES
    ) -> Array:
        """Return `picture` in 0..1, on its own scale."""
        (values,), bounds, _ = self.scaled([self.picture(sample, number, longest, contrast.channel)], contrast)
        return intensity(values, bounds)

    @property
    def plane_axes(self) -> tuple[str, ...]:
        """Names of the axes of an image."""
        return self.axes[self._leading :]

    @property
    def is_gray(self) -> bool:
        """Whether samples are images of a single intensity, for which there are colors."""
        colored = self.axes[-1] == CHANNEL and (self.sample_shape[-1] >= 3 or bool(self.channel_colors))
        return count_spatial(self.axes) > 1 and not colored

    @property
    def _leading(self) -> int:
        return max(0, count_spatial(self.axes) - 2)

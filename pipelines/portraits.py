"""The default source of pipelines: synthetic portraits of CelebA's size.

They are made from photographs in scikit-image, so a job runs on a new machine without downloads: NASA's portrait of
Eileen Collins (``skimage.data.astronaut``, public domain), the cat Chelsea (Stefan van der Walt, CC0), a cup of coffee
(Rachel Michetti, CC0) and a rocket (SpaceX, CC0). Every sample is one of these subjects. The face is aligned as in
CelebA's ``img_align_celeba``: the eyes are level, 111 rows down and 40 columns apart. Then the subject is moved,
scaled, turned and relit by a small random amount.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from dpca.storage.errors import DataError
from dpca.storage.readers.base import Block, Reader, digest

HEIGHT, WIDTH = 218, 178

# Positions of the eyes of the astronaut (x, y), and their middle and distance in CelebA's alignment.
_LEFT_EYE, _RIGHT_EYE = np.array([203.2, 101.2]), np.array([245.7, 103.4])
_EYES_AT = np.array([88.5, 111.0])
_EYE_DISTANCE = 39.5


class Subject(NamedTuple):
    """A photograph, and what a portrait shows of it."""

    name: str
    """Of the function of ``skimage.data``."""
    middle: tuple[float, float]
    """The place (x, y) of the photograph that portraits have where CelebA has the middle of the eyes."""
    step: float
    """Pixels of the photograph for one of the portrait."""
    tilt: float
    """Turn of the subject in the photograph, in radians."""


_BETWEEN = _RIGHT_EYE - _LEFT_EYE
_FACE = Subject(
    "astronaut",
    (float((_LEFT_EYE + _RIGHT_EYE)[0] / 2), float((_LEFT_EYE + _RIGHT_EYE)[1] / 2)),
    float(np.hypot(*_BETWEEN)) / _EYE_DISTANCE,
    float(np.arctan2(_BETWEEN[1], _BETWEEN[0])),
)
#: The subjects of the portraits. The first one is a face.
SUBJECTS = (
    _FACE,
    Subject("chelsea", (243.0, 128.0), 1.2, 0.1),
    Subject("coffee", (292.0, 200.0), 1.7, 0.0),
    Subject("rocket", (322.0, 232.0), 1.55, 0.0),
)

# Photographs are continued at their edges by their mirror image. The hair of the astronaut begins 15 rows below the
# upper edge, and CelebA shows more above it: there, the backdrop is continued from its first rows.
_BACKDROP_ROWS = 12
_MARGIN = 64

# Bilinear interpolation of the enlarged photograph is as sharp as bicubic interpolation of the photograph, at every
# position of the pixels, in a third of the time.
_OVERSAMPLING = 2

# Increased whenever the same parameters give other pixels, so that stores of older pixels are not reused.
_RECIPE = 2


class Jitter(NamedTuple):
    """Difference of one portrait from the aligned subject."""

    shift: tuple[float, float]
    """Right and down, in pixels."""
    scale: float
    """Size relative to CelebA's alignment."""
    angle: float
    """Turn in the image plane, in radians."""
    gamma: float
    """Exponent of intensities in 0..1: below 1 it lightens the shadows."""
    gain: tuple[float, float, float]
    """Exposure times tint, of red, green and blue."""
    slope: tuple[float, float]
    """Light from the side: relative change of brightness from the middle to the right and lower edges."""
    subject: int = 0
    """Which of the `SUBJECTS` it shows."""


def draw_jitter(seed: int, index: int) -> Jitter:
    """Draw the jitter of one portrait from ``(seed, index)`` alone, so that any worker can make any portrait."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, index]))
    # Clipped at 2.5 standard deviations, because the headroom is finite.
    z = np.clip(generator.standard_normal(11), -2.5, 2.5)
    exposure = np.exp(0.09 * z[4] - 0.07)
    red, green, blue = exposure * np.exp(0.02 * z[6:9])
    return Jitter(
        shift=(3 * z[0], 3 * z[1]),
        scale=float(np.exp(0.04 * z[2])),
        angle=float(np.deg2rad(3 * z[3])),
        gamma=float(np.exp(0.08 * z[5])),
        gain=(float(red), float(green), float(blue)),
        slope=(0.10 * z[9], 0.05 * z[10]),
        # Each equally often, and spread, so that any few portraits show several.
        subject=int((index + seed) * 0.7071 % 1 * len(SUBJECTS)),
    )


class Portraits(Reader):
    """A reader of ``count`` jittered portraits of the `SUBJECTS`, 218 x 178 x 3 uint8, each made on demand.

    Parameters
    ----------
    count : int
        Number of portraits.
    seed : int
        The same seed gives the same portraits, in any order.

    Raises
    ------
    DataError
        If ``count`` is not positive or ``seed`` is negative.

    Notes
    -----
    About 3 ms a portrait on a quiet core. The reader and its parts are small to pickle.
    """

    kind = "portraits"
    name = "synthetic portraits"
    encoded = False
    sample_shape = (HEIGHT, WIDTH, 3)
    dtype = np.dtype(np.uint8)
    axes = ("y", "x", "channel")
    data_range = (0.0, 255.0)

    def __init__(self, count: int = 2000, seed: int = 0) -> None:
        if count < 1:
            raise DataError(f"the number of portraits is {count}: use at least 1")
        if seed < 0:
            raise DataError(f"the seed of the portraits is {seed}: use 0 or a positive integer")
        self.count, self.seed = count, seed

    @property
    def names(self) -> Sequence[str]:
        """One name a portrait, ``portrait-00042``."""
        return [f"portrait-{index:05d}" for index in range(self.count)]

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> str:
        """Return a hash of everything that determines the pixels: parameters, recipe and photographs."""
        photographs = [_pixels_of(subject.name).tobytes() for subject in SUBJECTS]
        return digest(["portraits", _RECIPE, self.count, self.seed, *photographs])

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return a picklable function that makes these portraits: (len(indices), 218, 178, 3) uint8.

        Raises
        ------
        IndexError
            If one of these portraits does not exist.
        """
        for index in (min(indices, default=0), max(indices, default=0)):
            if not 0 <= index < self.count:
                raise IndexError(f"portrait {index} was requested, but the portraits are 0 to {self.count - 1}")
        return functools.partial(make_portraits, self.seed, indices)


def make_portraits(seed: int, indices: Sequence[int]) -> NDArray[np.uint8]:
    """Make portraits of these numbers: (len(indices), 218, 178, 3) uint8."""
    portraits = np.empty((len(indices), HEIGHT, WIDTH, 3), np.uint8)
    for position, index in enumerate(indices):
        portraits[position] = cut_portrait(draw_jitter(seed, int(index)))
    return portraits


def cut_portrait(jitter: Jitter) -> NDArray[np.uint8]:
    """Cut one portrait from its photograph: (218, 178, 3) uint8."""
    # Pillow transforms all channels at once, in a quarter of the time of scipy.ndimage.
    pixels = np.asarray(
        _photograph(SUBJECTS[jitter.subject].name).transform(
            (WIDTH, HEIGHT), Image.Transform.AFFINE, _affine(jitter), resample=Image.Resampling.BILINEAR
        )
    )
    # The pixels are gamma-encoded, so a change of exposure remains a factor. First tone by a table, then light.
    levels = np.linspace(0, 1, 256, dtype=np.float32) ** np.float32(jitter.gamma)
    across, down = np.linspace(-1, 1, WIDTH, dtype=np.float32), np.linspace(-1, 1, HEIGHT, dtype=np.float32)
    light = 255 * (1 + np.float32(jitter.slope[0]) * across + np.float32(jitter.slope[1]) * down[:, None])
    portrait = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    for channel, gain in enumerate(jitter.gain):
        plane = np.take(np.float32(gain) * levels, pixels[..., channel])
        plane *= light
        np.minimum(plane, 255, out=plane)
        np.rint(plane, out=plane)
        portrait[..., channel] = plane
    return portrait


def _affine(jitter: Jitter) -> tuple[float, ...]:
    """Return the six coefficients of Pillow that map a pixel (x, y) of the portrait to the photograph."""
    # The head is slightly tilted in the photograph; the alignment levels the eyes.
    subject = SUBJECTS[jitter.subject]
    angle, step = subject.tilt - jitter.angle, _OVERSAMPLING * subject.step / jitter.scale
    matrix = step * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = _OVERSAMPLING * (np.array(subject.middle) + _MARGIN)
    offset = middle - matrix @ (_EYES_AT + jitter.shift)
    return (*matrix[0].tolist(), float(offset[0]), *matrix[1].tolist(), float(offset[1]))


@functools.cache
def _photograph(name: str) -> Image.Image:
    """Return an enlarged photograph, continued at its edges; made once per process."""
    pixels = _pixels_of(name)
    margin = np.pad(pixels, ((_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0)), mode="reflect")
    if name == _FACE.name:
        margin[:_MARGIN] = np.pad(_headroom(pixels), ((0, 0), (_MARGIN, _MARGIN), (0, 0)), mode="reflect")
    whole = Image.fromarray(margin)
    enlarged = (_OVERSAMPLING * whole.width, _OVERSAMPLING * whole.height)
    return whole.resize(enlarged, resample=Image.Resampling.LANCZOS)


def _headroom(photograph: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the backdrop of the astronaut, continued upwards."""
    backdrop = photograph[:_BACKDROP_ROWS].astype(np.float32)
    soft = gaussian_filter(backdrop, (3, 3, 0), mode="nearest")
    # The film grain is mirrored; the color fades from that of the first row to a broad blur. Mirrored rows would be
    # visible as bands, and copies of the first row as streaks.
    grain = np.pad(backdrop - soft, ((_MARGIN, 0), (0, 0), (0, 0)), mode="reflect")[:_MARGIN]
    broad = gaussian_filter(backdrop.mean(axis=0), (24, 0), mode="nearest")
    nearness = np.clip(1 - np.arange(_MARGIN, 0, -1) / 32, 0, 1)[:, None, None]
    return np.clip(nearness * soft[0] + (1 - nearness) * broad + grain + 0.5, 0, 255).astype(np.uint8)


def _pixels_of(name: str) -> NDArray[np.uint8]:
    # scikit-image has no types here. The files are part of the package; nothing is downloaded.
    photograph: NDArray[np.uint8] = getattr(skimage.data, name)()
    return photograph

"""Aligned portraits: a drawn face, and its changes if light, hair, features or background change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpca.storage.arrays.layout import count_spatial
from dpca.storage.synthetic.exact import Floats, places
from dpca.storage.synthetic.model import ImageModel

# Standard deviations of the qualities that vary: of brightness from 0 to 1, and of lengths in units of half an image.
_VARIED = {
    "light_x": 0.45,
    "backdrop": 0.085,
    "exposure": 0.075,
    "light_y": 0.16,
    "hair_tone": 0.05,
    "hair_length": 0.075,
    "backdrop_warm": 0.05,
    "clothes": 0.075,
    "backdrop_slope": 0.065,
    "head_width": 0.020,
    "turn": 0.006,
    "beard": 0.06,
    "hairline": 0.025,
    "hair_red": 0.045,
    "smile": 0.06,
    "brow_y": 0.006,
}


@dataclass(frozen=True)
class DrawnPortraits(ImageModel):
    """Aligned portraits of drawn faces, `uint8`. For the parameters, see `ImageModel`.

    The mean is a drawn face of soft ellipses, painted one over another. A mode is the change of the drawing by one
    quality, such as the direction of light, the length of the hair, or a smile. The seed determines complexion, hair
    and colors of the mean. Samples have a height, a width, and up to 4 channels: gray, or red and gray, or red, green
    and blue, or these and gray.
    """

    n_modes = len(_VARIED)
    noise = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(
            count_spatial(self.axes) == 2,
            f"portraits cannot have the shape {self.sample_shape}: give height and width, and up to 4 channels",
        )

    def design(self) -> tuple[Floats, Iterable[Floats]]:
        """Draw the mean, and the change by each quality."""
        looks = [float(value) for value in self.random(4)]
        mean = self._drawn(looks)
        return mean, (self._drawn(looks, **{quality: size}) - mean for quality, size in _VARIED.items())

    def _drawn(self, looks: Sequence[float], **changed: float) -> Floats:
        """Return a face with these looks and changed qualities, with values from about 40 to 215."""
        height, width = self.sample_shape[:2]
        rgb: Floats = 255 * _face(places(height), places(width), looks, dict.fromkeys(_VARIED, 0.0) | changed)
        gray: Floats = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]
        if len(self.sample_shape) == 2:
            return gray
        chosen = {1: [gray], 2: [rgb[0], gray], 3: [*rgb], 4: [*rgb, gray]}[self.sample_shape[2]]
        return np.stack(chosen, axis=-1)


def _face(ys: Floats, xs: Floats, looks: Sequence[float], v: dict[str, float]) -> Floats:
    """Paint a face; red, green and blue from 0 to 1, shape (3, height, width)."""
    tone, hair_tone, warm, cloth = looks
    canvas = _Canvas(ys, xs)
    x, y = xs[None, :], ys[:, None]
    light = v["exposure"] + v["light_x"] * 0.45 * x - v["light_y"] * 0.4 * y
    canvas.rgb[:] = (
        _color(0.52 + 0.1 * (warm - 0.5), 0.53, 0.55 - 0.1 * (warm - 0.5))[:, None, None]
        + v["backdrop"]
        + v["backdrop_warm"] * _color(1.0, 0.1, -1.0)[:, None, None]
        + (v["backdrop_slope"] * x - 0.06 * y)
    )

    head_y, wide = -0.03, 0.46 + v["head_width"]
    dark = _color(0.30, 0.25, 0.21) * (0.95 + 0.5 * hair_tone) + v["hair_tone"] * _color(1.0, 0.9, 0.75)
    dark = dark + v["hair_red"] * _color(1.2, 0.2, -0.3)
    longer = v["hair_length"]
    canvas.oval((0.0, head_y - 0.16 + 0.6 * longer), (wide + 0.17, 0.78 + longer), 4.0, dark, 0.5 * light)
    clothes = _color(0.33, 0.37, 0.46) + 0.2 * (cloth - 0.5) + v["clothes"]
    canvas.oval((0.0, 1.25), (0.92, 0.52), 6.0, clothes, 0.6 * light)
    skin = _color(0.74, 0.57, 0.48) * (0.87 + 0.2 * tone)
    canvas.oval((0.0, 0.66), (0.24, 0.30), 4.0, skin - 0.10, light)
    across = x / wide
    canvas.oval((0.0, head_y + 0.03), (wide, 0.64), 7.0, skin, light - 0.10 * (across * across))
    turn, smile = v["turn"], v["smile"]
    canvas.oval((turn, head_y + 0.46), (0.27, 0.20), 1.5, skin - 0.05 - v["beard"], light, opacity=0.8)
    fringe = (0.04, head_y - 0.62 + v["hairline"])
    canvas.oval(fringe, (wide - 0.02, 0.20), 2.0, dark, 0.5 * light, bend=0.25)
    for side in (-1.0, 1.0):
        eye, opened = (turn + side * 0.185, head_y - 0.04), 0.040 - 0.05 * smile
        canvas.oval((eye[0], eye[1] - 0.005), (0.11, 0.075), 2.0, skin - 0.16, light, opacity=0.5)
        canvas.oval(eye, (0.083, opened), 2.0, _color(0.78, 0.77, 0.76), 0.7 * light)
        canvas.oval((eye[0] + 0.3 * turn, eye[1]), (0.040, 0.98 * opened), 1.5, _color(0.28, 0.23, 0.20))
        canvas.oval((eye[0], eye[1] - 0.125 - v["brow_y"]), (0.115, 0.022), 2.0, 0.95 * dark, 0.3 * light, bend=0.35)
        canvas.oval((turn + side * 0.07, head_y + 0.185), (0.035, 0.02), 2.0, skin - 0.25, light, opacity=0.6)
    canvas.oval((turn, head_y + 0.06), (0.045, 0.17), 1.2, skin + 0.08, light, opacity=0.45)
    canvas.oval((turn, head_y + 0.20), (0.085, 0.05), 1.5, skin - 0.09, light, opacity=0.4)
    mouth, bend = (turn, head_y + 0.337), -(0.15 + 4.0 * smile)
    canvas.oval(mouth, (0.165 + 0.4 * smile, 0.052), 3.0, _color(0.64, 0.38, 0.36), light, bend=bend)
    canvas.oval(mouth, (0.14, 0.012 + 0.06 * smile), 2.5, _color(0.34, 0.19, 0.18), bend=bend)
    return canvas.rgb


def _color(red: float, green: float, blue: float) -> Floats:
    return np.array([red, green, blue])


class _Canvas:
    """An image on which soft ellipses are painted. Both axes have coordinates from -1 to 1.

    Parameters
    ----------
    ys, xs : ndarray
        Centers of rows and columns.
    """

    def __init__(self, ys: Floats, xs: Floats) -> None:
        self._ys, self._xs = ys, xs
        self.rgb: Floats = np.zeros((3, len(ys), len(xs)))

    def oval(
        self,
        center: tuple[float, float],
        radii: tuple[float, float],
        sharpness: float,
        color: Floats,
        light: Floats | float = 0.0,
        *,
        opacity: float = 1.0,
        bend: float = 0.0,
    ) -> None:
        """Paint an ellipse, bent to a parabola: ``center`` and ``radii`` are (x, y), and ``light`` is added."""
        (x, y), (rx, ry) = center, radii
        outside = math.sqrt(1 + 1 / sharpness)  # end of the soft edge, in radii
        droop = abs(bend) * (rx * outside) * (rx * outside)
        rows, columns = _within(self._ys, y, ry * outside + droop), _within(self._xs, x, rx * outside)
        across = self._xs[None, columns] - x
        down = (self._ys[rows, None] - y - bend * (across * across)) / ry
        across = across / rx
        t = np.clip((1 - (across * across + down * down)) * (0.5 * sharpness) + 0.5, 0, 1)
        mask = t * t * (3 - 2 * t) * opacity
        shade = light if isinstance(light, float) else light[rows, columns]
        for plane, value in zip(self.rgb[:, rows, columns], color.tolist(), strict=True):
            plane += mask * (shade + value - plane)


def _within(places: Floats, center: float, reach: float) -> slice:
    """Return the slice of the places within a distance of a center."""
    found = np.flatnonzero(np.abs(places - center) <= reach)
    return slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0)

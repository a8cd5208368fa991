"""The similarity of bands at random and components of whole samples (Alakkari 2020, section 4.5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.metrics import principal_angles
from dpca.partition.bands import Bands
from dpca.plots.panels import spread_over
from dpca.representation.linear import LinearRepresentation

#: Numbers of components whose spans are compared.
_SPANS = (1, 2, 3, 5, 10, 20)
# Samples whose scores determine signs, and how many of them are projected at once.
_MOST_SAMPLES, _ROWS = 1000, 64


@dataclass(frozen=True)
class Analogy:
    """Explained variances and angles.

    Attributes
    ----------
    holistic : tuple of float
        Share of the variance of the training samples that the first 1, 2, ... components of whole samples explain.
    bands : dict of str to tuple of float
        The same for the first components of every band, for each random mapping.
    combined : tuple of float
        The same for vectors that combine one component of every band.
    angles : dict of int to tuple of 3 floats
        Number of components -> smallest, middle and largest principal angle, in degrees, between the span of these
        vectors and that of the components of whole samples.
    """

    holistic: tuple[float, ...]
    bands: dict[str, tuple[float, ...]]
    combined: tuple[float, ...]
    angles: dict[int, tuple[float, float, float]]

    def apart(self, name: str) -> float:
        """Return the largest difference of explained variance between bands and whole samples, in points."""
        return max(abs(100 * (a - b)) for a, b in zip(self.bands[name], self.holistic, strict=False))

    def as_dict(self) -> dict[str, Any]:
        """Return the analogy for JSON, with the largest differences."""
        return {**asdict(self), "largest_difference_points": {name: self.apart(name) for name in self.bands}}


def combined(basis: LinearRepresentation, values: Array, count: int) -> Array:
    """Combine the j-th components of all bands into one vector of a whole sample, for j = 1, ..., count.

    The sign of a component is arbitrary. Here the scores of the bands determine it: the signs are those of the first
    right singular vector of the standardized scores (samples x bands). Components of whole samples are not used.

    Parameters
    ----------
    basis : LinearRepresentation
    values : array (n, *sample_shape)
    count : int

    Returns
    -------
    array (min(count, n_components), n_features), float32 or float64
        Orthonormal rows, because those of a band are.
    """
    some = values[np.array(spread_over(len(values), _MOST_SAMPLES))]
    count = min(count, len(basis.components))
    blocks = [some[start : start + _ROWS] for start in range(0, len(some), _ROWS)]
    scores = np.concatenate([basis.encode(np.ascontiguousarray(block))[..., :count] for block in blocks])
    labels = cast("Bands", basis.partition).labels.reshape(-1)
    flat = basis.components[:count].reshape(count, -1)
    rows = np.stack([row * _signs(scores[..., j])[labels].astype(flat.dtype) for j, row in enumerate(flat)])
    return _scaled(rows, axis=1)


def angles_between(a: Array, b: Array, spans: Sequence[int] = _SPANS) -> dict[int, tuple[float, float, float]]:
    """Return the smallest, middle and largest principal angle, in degrees, between the spans of the first rows.

    Parameters
    ----------
    a, b : array (k, d)
    spans : sequence of int
        Numbers of rows; those above k are left out.
    """
    found = {}
    for k in spans:
        if k <= min(len(a), len(b)) and len(angles := np.degrees(principal_angles(a[:k], b[:k]))):
            found[k] = (float(angles[0]), float(np.median(angles)), float(angles[-1]))
    return found


def _signs(scores: Array) -> Array:
    """Return signs (m,) that make the columns of scores (n, m) agree."""
    scores = scores.astype(np.float64)
    centered = _scaled(scores - scores.mean(axis=0), axis=0)
    leading = np.linalg.svd(centered, full_matrices=False)[2][0]
    return np.where(leading < 0, -1.0, 1.0)


def _scaled(x: Array, axis: int) -> Array:
    """Scale vectors along an axis to length 1, in place; zero vectors stay zero."""
    lengths = np.linalg.norm(x, axis=axis, keepdims=True)
    np.divide(x, lengths, out=x, where=lengths > 0)
    return x

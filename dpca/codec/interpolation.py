"""Multilevel interpolation: stores a coarse grid, then the prediction errors of the values between, level by level.

::

    an axis of 9, two levels     A . . . A . . . A     every fourth value is stored itself
                                 A . 1 . A . 1 . A     level 1: predicted from A
                                 A 0 1 0 A 0 1 0 A     level 0: predicted from A and level 1

A value lies halfway between known values along some axes. Its prediction is a weighted sum of four neighbors along each
of these axes: the two nearest and the two after them. The weights are fitted to some samples. Predictions use decoded
values, so that errors do not add up. SZ3 (Zhao 2021, section III) does the same with cubic weights along one axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpca.codec.quantize import to_integers
from dpca.kernels.algebra.types import Array

# Largest number of levels. Short axes have fewer.
_LEVELS = 5
# Weights are integers in this unit. It is so small that rounding of weights matters little for values far from zero.
_UNIT = 2.0**-20
# Approximate number of values in the fit of the weights of one level. The fit has a prior: the weights of cubic
# interpolation, with the relative weight _PRIOR.
_FITTED, _CUBIC, _PRIOR = 2**18, (9 / 16, -1 / 16), 1e-9
#: Factors by which each coarser level has a smaller step, and the largest total factor. Finer levels then have better
#: predictions.
FINER, MOST_FINER = (1.0, 1.5), 3.0


class _Halfway(NamedTuple):
    """The values of one level that lie between known ones along the same axes.

    Attributes
    ----------
    level, number : int
        First two indices of the weights.
    lines : array (n_lines,) of integers
        Start of each line along the last axis, in C order.
    length, stride : int
        Number of values of a line, and their distance.
    near : array (n_lines, k, 4) of integers
        Offsets of the neighbors along the axes before the last: the two nearest and the two after them.
    along : array (count or 0, 4) of integers
        Offsets of the neighbors along the last axis.
    rows : list of int
        Rows of the weights that belong to these axes.
    """

    level: int
    number: int
    lines: Array
    length: int
    stride: int
    near: Array
    along: Array
    rows: list[int]


@dataclass(frozen=True, eq=False)
class Interpolation:
    """Maps values to integers, most of them zero, and back.

    Parameters
    ----------
    axes : tuple of int
        Axes of the prediction.
    steps : tuple of float
        Quantization step of each level, the finest level first, then that of the coarsest grid.
    weights : array (n_levels, 2^n_axes - 1, n_axes, 2) of integers
        Weights for each level, set of axes and axis, in units of 2^-20: of the nearest neighbors and of those after
        them.
    """

    axes: tuple[int, ...]
    steps: tuple[float, ...]
    weights: Array

    @classmethod
    def fitted(cls, values: Array, axes: Sequence[int], step: float, finer: float) -> Interpolation:
        """Fit the weights to values (n, *sample_shape) by least squares.

        The step of each level is ``finer`` times smaller than that of the next finer level, down to a third.
        """
        longest = max(values.shape[axis] for axis in axes)
        n_levels = min(_LEVELS, max(1, (longest - 1).bit_length()))
        steps = tuple(step / min(finer**level, MOST_FINER) for level in range(n_levels + 1))
        found = cls(tuple(axes), steps, np.zeros((n_levels, 2 ** len(axes) - 1, len(axes), 2), np.int32))
        found.encode(values, fit=True)
        return found

    def encode(self, values: Array, *, fit: bool = False) -> tuple[Array, Array]:
        """Return the codes, int32, of values (n, *sample_shape), float64, and the decoded values.

        With ``fit``, the weights are fitted to the values first, level by level.

        Raises
        ------
        OverflowError
            If a code does not fit into 32 bits.
        """
        from dpca.kernels.prediction import subtract_predicted

        values = values.copy()
        codes, coarse = np.zeros(values.shape, np.int32), self._coarse(values)
        whole = np.rint(values[coarse] / self.steps[-1])
        codes[coarse], values[coarse] = to_integers(whole, np.int32), whole * self.steps[-1]
        for some, part in self._in_order(values.shape, together=fit):
            own = values[some].reshape(-1)
            if fit:
                self.weights[part.level, part.number, part.rows] = _fit(own, part)
            step = self.steps[part.level]
            largest = subtract_predicted(own, codes[some].reshape(-1), *part[2:7], self._weights(part), step)
            if not largest < 2**30:
                raise OverflowError(f"codes up to {largest:.4g} do not fit into 32 bits")
        return codes, values

    def decode(self, codes: Array) -> Array:
        """Decode codes (n, *sample_shape), int32, to float64."""
        from dpca.kernels.prediction import add_predicted

        values = np.zeros(codes.shape)
        values[self._coarse(codes)] = codes[self._coarse(codes)] * self.steps[-1]
        for some, part in self._in_order(codes.shape):
            own, step = values[some].reshape(-1), self.steps[part.level]
            add_predicted(own, codes[some].reshape(-1), *part[2:7], self._weights(part), step)
        return values

    def _weights(self, part: _Halfway) -> Array:
        return self.weights[part.level, part.number, part.rows] * _UNIT

    def _coarse(self, values: Array) -> tuple[slice, ...]:
        far = 2 ** (len(self.steps) - 1)
        return tuple(slice(None, None, far if axis in self.axes else 1) for axis in range(values.ndim))

    def _in_order(self, shape: tuple[int, ...], *, together: bool = False) -> Iterator[tuple[slice, _Halfway]]:
        """Yield samples, and their sets of predicted values in the order of prediction.

        Samples that are not predicted from each other follow one by one, unless they are to be processed ``together``:
        one of them may fit into the cache.
        """
        if together or 0 in self.axes:
            yield from ((slice(None), part) for part in self._parts(shape))
            return
        parts = list(self._parts((1, *shape[1:])))
        yield from ((slice(i, i + 1), part) for i in range(shape[0]) for part in parts)

    def _parts(self, shape: tuple[int, ...]) -> Iterator[_Halfway]:
        """Yield the sets of predicted values in the order of prediction."""
        for level in reversed(range(len(self.steps) - 1)):
            for number, odd in enumerate(parities(len(self.axes))):
                between = {axis for axis, is_odd in zip(self.axes, odd, strict=True) if is_odd}
                half, at = 2**level, []
                for axis, length in enumerate(shape):
                    first, every = (half if axis in between else 0), (2 * half if axis in self.axes else 1)
                    at.append(np.arange(first, length, every))
                if all(map(len, at)):
                    yield self._part(shape, level, number, between, at)

    def _part(self, shape: tuple[int, ...], level: int, number: int, between: set[int], at: list[Array]) -> _Halfway:
        half, last = 2**level, len(shape) - 1
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        near, along = [], np.zeros((0, 4), np.int64)
        outer = tuple(map(len, at[:last]))
        for axis in sorted(between):
            end = (shape[axis] - 1) // (2 * half) * 2 * half
            beside = np.tile(half * np.array([-1, 1, -3, 3]), (len(at[axis]), 1))
            beside[at[axis] == end + half, 1] = -half
            # If the two farther neighbors do not exist, the nearest ones replace them: interpolation is linear there.
            inside = (at[axis] >= 3 * half) & (at[axis] + 3 * half <= end)
            beside[~inside, 2:] = beside[~inside, :2]
            if axis == last:
                along = beside
            else:
                spread = (beside * strides[axis]).reshape(-1, *(1,) * (last - axis - 1), 4)
                near.append(np.broadcast_to(spread, (*outer, 4)).reshape(-1, 4))
        lines = np.zeros(outer, np.int64)
        for axis in range(last):
            lines += (at[axis] * strides[axis]).reshape(-1, *(1,) * (last - axis - 1))
        stacked = np.stack(near, axis=1) if near else np.zeros((lines.size, 0, 4), np.int64)
        stride = int(at[last][1] - at[last][0]) if len(at[last]) > 1 else 1
        rows = [self.axes.index(axis) for axis in sorted(between)]
        return _Halfway(level, number, lines.reshape(-1) + at[last][0], len(at[last]), stride, stacked, along, rows)


def parities(n_axes: int) -> list[tuple[int, ...]]:
    """Return all sets of axes along which values lie halfway, in the order of prediction: single axes first."""
    every = itertools.product((0, 1), repeat=n_axes)
    return sorted((odd for odd in every if any(odd)), key=sum)


def _fit(values: Array, part: _Halfway) -> Array:
    """Return the weights (k, 2) of least squared prediction error, as integers."""
    every = max(1, len(part.lines) * part.length // _FITTED)
    places = part.lines[::every, None] + part.stride * np.arange(part.length)
    beside = [part.near[::every, j, :, None] for j in range(part.near.shape[1])]
    beside += [part.along.T[None]] if len(part.along) else []
    columns = []
    for near in beside:
        columns += [(values[places + near[:, i]] + values[places + near[:, i + 1]]).ravel() for i in (0, 2)]
    k = len(beside)
    matrix, cubic, known = np.stack(columns), np.tile(_CUBIC, k) / k, values[places].ravel()
    # Weights do not depend on the scale. Scaling keeps squares within the range of float64.
    scale = -np.frexp(max(np.abs(matrix).max(initial=0), np.abs(known).max(initial=0)))[1]
    matrix, known = np.ldexp(matrix, scale), np.ldexp(known, scale)
    products = matrix @ matrix.T
    prior = _PRIOR * np.trace(products) + np.finfo(float).tiny
    products[np.diag_indices_from(products)] += prior
    found = np.linalg.solve(products, matrix @ known + prior * cubic)
    return to_integers(np.rint(np.clip(found, -8, 8) / _UNIT), np.int32).reshape(k, 2)


def folded(codes: Array) -> Array:
    """Map signed codes, int32, to unsigned ones, uint32: 0, -1, 1, -2, 2 ... to 0, 1, 2, 3, 4 ... (zigzag encoding).

    The upper bytes of small codes are then zero.
    """
    return ((codes << 1) ^ (codes >> 31)).view(np.uint32)


def unfolded(codes: Array) -> Array:
    """Invert `folded`."""
    return (codes >> 1).astype(np.int32) ^ -(codes & 1).astype(np.int32)

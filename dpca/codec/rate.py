"""Rate-distortion choice of scores, with one price per bit for all components of all cells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpca.codec.quantize import ROUNDING, quantize
from dpca.kernels.algebra.types import Array

#: Squared error, in steps squared, that a bit must save. In the limit of many bits per score it is ln 2 / 6 = 0.116. On
#: photographs, no value from 0.08 to 0.12 saves more than 1 % of the bytes.
PRICE = 0.1
# Larger codes cost two more bits each time they double.
_COUNTED = 127


class Rows(NamedTuple):
    """Rate and distortion of rows of scores for one step.

    Attributes
    ----------
    power : array (n_rows,)
        Sum of squares.
    saved : array (n_rows,)
        The part of the power that quantization preserves.
    bits : array (n_rows,)
        Entropy of the codes of each row, summed over its values.
    """

    power: Array
    saved: Array
    bits: Array

    def pays_off(self, times: float, row_bits: Array) -> Array:
        """Return a mask (n_rows,) of the rows that save more squared error than the price of their bits.

        Parameters
        ----------
        times : float
            Number of all samples divided by the number of samples in the rows.
        row_bits : array (n_rows,)
            Fixed bits per row besides its scores: its share of the component.
        """
        return self.saved * times > PRICE * (self.bits * times + row_bits)


def rows_at(scores: Array, step: float) -> Rows:
    """Measure rows of scores (n_rows, n), one component of one cell per row. Squares are in steps squared."""
    from dpca.kernels.sweeps import measure_rows

    n = np.arange(scores.shape[1] + 1)
    found = Rows(*np.zeros((3, len(scores))))
    measure_rows(scores, scores.dtype.type(step), ROUNDING, _COUNTED, n * np.log2(np.maximum(n, 1)), *found)
    return found


def least_worth_keeping(scores: Array, step: float) -> Array:
    """Return, for each row (n_rows, n), the least magnitude in steps of a score that saves more than its bits cost.

    In a row of almost only zeros, a code of 1 costs many bits. It pays only for large scores. This saves 2 % of the
    bytes at equal error.
    """
    codes = np.abs(quantize(scores.astype(scores.dtype), step))
    n = max(1, scores.shape[1])
    zeros, ones = (np.count_nonzero(codes == value, axis=1) / n for value in (0, 1))
    bits = np.log2(np.maximum(zeros, 1 / n)) - np.log2(np.maximum(ones / 2, 1 / (2 * n)))
    return np.clip((1 + PRICE * bits) / 2, 0, 1)

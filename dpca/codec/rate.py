"""Which scores pay for their bits: one price for all components of all cells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpca.codec.quantize import ROUNDING, quantize
from dpca.kernels.types import Array

# Squared error, in steps squared, that a bit must save. With many bits a score it is ln 2 / 6 = .116; on photographs,
# of .08 to .12 none is better by 1 % of the bytes.
_PRICE = 0.1
# Codes beyond count as two bits more each time that they double.
_COUNTED = 127


class Rows(NamedTuple):
    """What rows of scores come to with a step.

    Attributes
    ----------
    power : array (n_rows,)
        Sum of squares.
    saved : array (n_rows,)
        Of these, what is not lost where they are stored as codes.
    bits : array (n_rows,)
        Entropy of the codes of each row, over all its values.
    """

    power: Array
    saved: Array
    bits: Array

    def worth_keeping(self, times: float, row_bits: Array) -> Array:
        """Say which rows (n_rows,) save more squared error than their bits are worth.

        Parameters
        ----------
        times : float
            How many samples there are for each of those whose scores the rows hold.
        row_bits : array (n_rows,)
            Bits that a row costs once, beside those of its scores: its share of the component.
        """
        kept: Array = self.saved * times > _PRICE * (self.bits * times + row_bits)
        return kept


def rows_at(scores: Array, step: float) -> Rows:
    """Measure rows of scores (n_rows, n), of one component of one cell each: squares in steps squared."""
    from dpca.kernels.sweeps import measure_rows

    n = np.arange(scores.shape[1] + 1)
    found = Rows(*np.zeros((3, len(scores))))
    measure_rows(scores, scores.dtype.type(step), ROUNDING, _COUNTED, n * np.log2(np.maximum(n, 1)), *found)
    return found


def least_worth_keeping(scores: Array, step: float) -> Array:
    """Return how many steps a score must have at least, for each row (n_rows, n), to save more than its bits cost.

    A one where hardly any value differs from zero takes many bits: it is worth keeping only where it saves much. This
    saves 2 % of the bytes at equal error.
    """
    codes = np.abs(quantize(scores.astype(scores.dtype), step))
    n = max(1, scores.shape[1])
    zeros, ones = ((codes == value).mean(axis=1) for value in (0, 1))
    bits = np.log2(np.maximum(zeros, 1 / n)) - np.log2(np.maximum(ones / 2, 1 / (2 * n)))
    least: Array = np.clip((1 + _PRICE * bits) / 2, 0, 1)
    return least

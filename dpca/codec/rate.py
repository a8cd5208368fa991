"""Which scores pay for their bits: one price for all components of all cells."""

from __future__ import annotations

import numpy as np

from dpca.codec.quantize import quantize
from dpca.kernels.types import Array

# Squared error, in steps squared, that a bit must save. With many bits a score it is ln 2 / 6 = .116; on photographs,
# of .08 to .12 none is better by 1 % of the bytes.
_PRICE = 0.1
# Codes beyond count as two bits more each time that they double.
_COUNTED = 127
_BLOCK = 4096


def entropy_bits(codes: Array) -> Array:
    """Return the bits (n_rows,) that the entropy of each row (n_rows, n) of integers comes to, over all its values."""
    bits = np.zeros(len(codes))
    used = np.flatnonzero(codes.any(axis=1))
    width = 2 * _COUNTED + 1
    for start in range(0, len(used), _BLOCK):
        rows = used[start : start + _BLOCK]
        values = codes[rows]
        near = np.clip(values, -_COUNTED, _COUNTED).astype(np.int64) + _COUNTED
        near += np.arange(len(rows))[:, None] * width
        counts = np.bincount(near.ravel(), minlength=len(rows) * width).reshape(len(rows), width)
        n = codes.shape[1]
        spread = n * np.log2(n) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
        far = 2 * np.log2(np.maximum(np.abs(values), _COUNTED) / _COUNTED).sum(axis=1)
        bits[rows] = spread + far
    return bits


def worth_keeping(scores: Array, step: float, times: float, row_bits: Array) -> Array:
    """Say which rows of scores save more squared error than their bits are worth.

    Parameters
    ----------
    scores : array (n_rows, n)
        Scores of one component of one cell a row, of some samples.
    step : float
    times : float
        How many samples there are for each of these.
    row_bits : array (n_rows,)
        Bits that a row costs once, beside those of its scores: its share of the component.

    Returns
    -------
    array (n_rows,) of bool
    """
    kept = np.zeros(len(scores), bool)
    for start in range(0, len(scores), _BLOCK):
        here = slice(start, start + _BLOCK)
        values = scores[here] / scores.dtype.type(step)
        codes = quantize(values.copy(), 1)
        saved = (np.square(values, dtype=np.float64) - np.square(values - codes, dtype=np.float64)).sum(axis=1)
        kept[here] = saved * times > _PRICE * (entropy_bits(codes) * times + row_bits[here])
    return kept


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

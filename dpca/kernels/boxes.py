"""Compiled products of boxes of samples with few vectors each, without a copy of every box.

BLAS needs a contiguous copy of each box, and a product of it before it is added to the samples. For boxes of few pixels
and few vectors, these copies take several times as long as the products.

A table of boxes (n_boxes, 6) of integers has for each box: its first run, number of runs, values of a run, first
weight, number of vectors, and first score. Runs are contiguous values of a sample, and ``starts`` are their first ones.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import reordered

# Samples of a tile. With four vectors of a box, they stay in the fastest cache.
_SAMPLES = 16


@reordered
def _most_values(boxes: Array) -> int:
    most = 0
    for c in range(len(boxes)):
        most = max(most, boxes[c, 1] * boxes[c, 2])
    return most


@reordered
def project_boxes(samples: Array, boxes: Array, starts: Array, weights: Array, scores: Array) -> None:
    """Set ``scores`` (n, n_scores) to the inner products of the boxes of samples (n, size) with their vectors.

    ``weights`` has the vectors (n_vectors, values) of one box after the other.
    """
    kind, n = samples.dtype.type, len(samples)
    tile = np.empty((_SAMPLES, _most_values(boxes)), samples.dtype)
    for run, runs, length, weight, rank, score in boxes:
        size = runs * length
        for first in range(0, n, _SAMPLES):
            few = min(_SAMPLES, n - first)
            for i in range(few):
                sample, values = samples[first + i], tile[i]
                for r in range(runs):
                    line, copied = sample[starts[run + r] :][:length], values[r * length :][:length]
                    for j in range(length):
                        copied[j] = line[j]
            k = 0
            while k < rank:
                at = weight + k * size
                one = weights[at : at + size]
                if k + 3 < rank:  # four at a time need a third of the loads
                    two, three = weights[at + size : at + 2 * size], weights[at + 2 * size : at + 3 * size]
                    four = weights[at + 3 * size : at + 4 * size]
                    for i in range(few):
                        values, found = tile[i, :size], scores[first + i, score + k : score + k + 4]
                        a, b, c, d = kind(0), kind(0), kind(0), kind(0)
                        for j in range(size):
                            a += values[j] * one[j]
                            b += values[j] * two[j]
                            c += values[j] * three[j]
                            d += values[j] * four[j]
                        found[0], found[1], found[2], found[3] = a, b, c, d
                    k += 4
                else:
                    for i in range(few):
                        values, a = tile[i, :size], kind(0)
                        for j in range(size):
                            a += values[j] * one[j]
                        scores[first + i, score + k] = a
                    k += 1


@reordered
def add_boxes(scores: Array, boxes: Array, starts: Array, weights: Array, samples: Array) -> None:
    """Add the sums of vectors times their scores (n, n_scores) to the boxes of samples (n, size)."""
    n = len(samples)
    tile = np.empty((_SAMPLES, _most_values(boxes)), samples.dtype)
    for run, runs, length, weight, rank, score in boxes:
        size = runs * length
        for first in range(0, n, _SAMPLES):
            few = min(_SAMPLES, n - first)
            tile[:few, :size] = 0
            k = 0
            while k < rank:
                at = weight + k * size
                one = weights[at : at + size]
                if k + 3 < rank:
                    two, three = weights[at + size : at + 2 * size], weights[at + 2 * size : at + 3 * size]
                    four = weights[at + 3 * size : at + 4 * size]
                    for i in range(few):
                        values, of = tile[i, :size], scores[first + i, score + k : score + k + 4]
                        a, b, c, d = of[0], of[1], of[2], of[3]
                        for j in range(size):
                            values[j] += (a * one[j] + b * two[j]) + (c * three[j] + d * four[j])
                    k += 4
                else:
                    for i in range(few):
                        values, a = tile[i, :size], scores[first + i, score + k]
                        for j in range(size):
                            values[j] += a * one[j]
                    k += 1
            for i in range(few):
                sample, values = samples[first + i], tile[i]
                for r in range(runs):
                    line, added = sample[starts[run + r] :][:length], values[r * length :][:length]
                    for j in range(length):
                        line[j] += added[j]

"""What fits of bands, of overlapping cells and of few images in memory cost; ratios of processor time.

    python tests/benchmarks/speed/partition_speed.py --source lfw-deepfunneled-00.tar

Bands are held against cells with as many attributes; those by mean and variance take a pass for the statistics, which
is counted. Overlapping cells are held against cells of float32 samples, because filtered values are floats; an overlap
adds (1 + 2 overlap / cell) ** 2 attributes to a cell, and that is the bound. Images in memory are held against numpy in
the obvious way: the covariance of each cell, and LAPACK's leading eigenvectors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from dpca import BandPCA, CellPCA
from tests.benchmarks.inputs import CELL, Array, Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of
from tests.conftest import smooth_images

_K = 20


def band_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare bands with cells."""
    stack, cell, k = inputs.stack, 25, 125
    size = min(cell * cell * math.prod(stack.sample_shape[2:]), math.prod(stack.sample_shape) // 2)
    fits: dict[str, Callable[[], Any]] = {"cells": lambda: CellPCA(k, cell_shape=cell).fit(stack)}
    for mapping in ("random", "mean-variance"):
        fits[mapping] = partial(BandPCA(k, band_size=size, mapping=mapping, random_state=0).fit, stack)
    rounds = in_turn(fits, inputs.rounds)
    where = f"stack of {stack.sample_shape}, {size:,} attributes in a band, k = {k}"
    for mapping in ("random", "mean-variance"):
        found = ratio_of(rounds, [mapping], ["cells"])
        yield at_most(None, name=f"bands, {mapping}", where=where, n=stack.n_samples, **found)


def overlap_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare cells that overlap with cells that do not."""
    n, side = (100, 40) if inputs.quick else (2000, 100)
    x = smooth_images(n, (side, side, 3))
    fits: dict[str, Callable[[], Any]] = {"float32": partial(CellPCA(_K, cell_shape=CELL).fit, x.astype(np.float32))}
    overlaps = (2, 5)
    for overlap in overlaps:
        fits[f"overlap {overlap}"] = partial(CellPCA(_K, cell_shape=CELL, overlap=overlap).fit, x)
    rounds = in_turn(fits, inputs.rounds)
    for overlap in overlaps:
        found = ratio_of(rounds, [f"overlap {overlap}"], ["float32"])
        where = f"made images of {side} x {side} x 3, cells of {CELL}, k = {_K}"
        bound = (1 + 2 * overlap / CELL) ** 2
        yield at_most(round(bound, 2), name=f"overlap {overlap}", where=where, n=n, **found)


def in_memory_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare a fit of images in memory with numpy."""
    images = np.asarray(inputs.stack.samples[: 30 if inputs.quick else 500])
    fits = {"CellPCA": partial(CellPCA(_K, cell_shape=CELL).fit, images), "numpy": partial(_obvious, images)}
    with threadpool_limits(1):
        fits["CellPCA"]()  # the first one loads code
        rounds = in_turn(fits, inputs.rounds)
    found = ratio_of(rounds, ["CellPCA"], ["numpy"])
    where = f"images of {images.shape[1:]} in memory, cells of {CELL}, k = {_K}"
    yield at_most(1.0, name="images in memory", where=where, n=len(images), **found)


def _obvious(images: Array) -> list[Array]:
    found = []
    for top in range(0, images.shape[1], CELL):
        for left in range(0, images.shape[2], CELL):
            x = images[:, top : top + CELL, left : left + CELL].reshape(len(images), -1).astype(np.float32)
            x -= x.mean(axis=0)
            d = x.shape[1]
            covariance = (x.T @ x / (len(x) - 1)).astype(np.float64)
            found.append(scipy.linalg.eigh(covariance, subset_by_index=(max(0, d - _K), d - 1))[1])
    return found


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure all."""
    return chain(band_lines(inputs), overlap_lines(inputs), in_memory_lines(inputs))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))

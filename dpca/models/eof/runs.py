"""Runs of flattened samples: the box of a sample that contains one, and their best length."""

from __future__ import annotations

import math

import numpy as np

from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Region


def box_of_run(shape: tuple[int, ...], start: int, stop: int) -> Region:
    """Return the smallest box of whole rows, planes and so on that contains a run of a flattened sample.

    The box is a run of the flattened sample itself.
    """
    ends = zip(np.unravel_index(start, shape), np.unravel_index(stop - 1, shape), strict=True)
    box: list[tuple[int, int]] = []
    for first, last in ends:
        box.append((int(first), int(last) + 1))
        if first != last:
            break
    return (*box, *((0, length) for length in shape[len(box) :]))


def chunk_run(source: Source) -> int:
    """Return the length of the shortest run of a flattened sample whose box overlaps only whole chunks.

    Runs of a multiple of this length, from 0 on, read no chunk twice.
    """
    shape, chunks = source.shape[1:], source.chunks[1:]
    axis = next((i for i, length in enumerate(shape) if length > 1), 0)
    return min(chunks[axis], shape[axis]) * math.prod(shape[axis + 1 :])

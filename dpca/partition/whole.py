"""The partition of PCA of whole samples: one part with all attributes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca.kernels.algebra.namespace import namespace
from dpca.kernels.algebra.types import Array
from dpca.partition.base import Partition


@dataclass(frozen=True)
class Whole(Partition):
    """One part with all attributes.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample.
    """

    sample_shape: tuple[int, ...]

    remedy: ClassVar[str] = (
        "use fewer components, or StreamingPCA(method='incremental-svd'), which spreads its basis over workers, or "
        "CellPCA, which analyzes the parts of a sample one by one"
    )

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Return the samples as rows, a view without a copy."""
        return [namespace(block).reshape(block, (block.shape[0], math.prod(block.shape[1:]))) for _ in parts]

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy rows (1, n, n_features) into samples, unless both share memory."""
        for _, (rows,) in parts:
            if not np.may_share_memory(rows, samples):
                samples[: len(rows)] = rows.reshape(len(rows), *self.sample_shape)
        return samples

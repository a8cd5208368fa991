"""The memory of a task that encodes a shard, and how many samples it decodes at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpca.codec.waves import RUN
from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.source import Source
from dpca.engine.sources.tiled import TiledSource
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import quality_bytes
from dpca.representation.compressed.compressed_form import StoreForm

# Bytes of floating-point samples that are encoded at a time.
_BLOCK_BYTES = 3 * 2**24


@dataclass(frozen=True)
class EncodeMemory:
    """The sizes that determine the memory of a task that encodes a shard.

    Parameters
    ----------
    source : Source
    form : StoreForm
        Layout of the arrays.
    n_positions : int
        Number of codes of a sample.
    promised : bool
        Whether the store has an error bound, and thus residuals.
    n_values : int
        Number of values of all components.
    """

    source: Source
    form: StoreForm
    n_positions: int = 0
    promised: bool = True
    n_values: int = 0

    @property
    def encoded_at_once(self) -> int:
        """Number of samples that are encoded at a time."""
        if self.form.plain:
            return min(self.source.shape[0], self.form.rows)
        sample = math.prod(self.source.shape[1:]) * working_dtype(self.source.dtype).itemsize
        most = max(1, _BLOCK_BYTES // sample)
        # Whole runs of waves. Matrix products are also faster with multiples of 16.
        return min(self.source.shape[0], self.form.shard_rows, max(RUN, most // RUN * RUN))

    def decoded_at_once(self, budget: int) -> int:
        """Return how many samples are decoded at a time: fewer than are encoded if ``budget`` bytes are too few.

        Raises
        ------
        PlanError
            If a shard does not fit, even though single samples are decoded.
        """
        decoded = self.encoded_at_once
        while decoded > 1 and not self.form.plain and self.task_bytes(decoded) > budget:
            decoded //= 2
        rows = min(self.form.shard_rows, self.source.shape[0])
        require_memory(f"{rows:,} samples", self.task_bytes(decoded), budget)
        return decoded

    def task_bytes(self, decoded: int | None = None) -> int:
        """Return the most bytes that a task takes beyond its process, if it decodes ``decoded`` samples at once."""
        source, promised = self.source, self.promised
        sample, dtype = math.prod(source.shape[1:]), source.dtype
        rows, block = min(self.form.shard_rows, source.shape[0]), self.encoded_at_once
        exact = promised or dtype.kind == "f"
        itemsize = 8 if exact else working_dtype(dtype).itemsize
        # Codes, and residuals if any, of 32 bits.
        written = rows * (self.n_positions + (sample if promised else 0)) * 4
        reading = rows * sample * dtype.itemsize + 4 * math.prod(source.chunks) * dtype.itemsize
        # Samples to encode are read as bytes, or copied in floating point. Small integers are decoded without a copy.
        encoding = block * sample * (0 if dtype == np.uint8 else itemsize)
        small = Pixels(dtype, (0, 0)).are_small
        of_a_value = 5 * itemsize if promised else dtype.itemsize if small else itemsize + dtype.itemsize
        decoding = (decoded or block) * sample * of_a_value
        if isinstance(source, Filled):
            # Filled samples, and which values are missing. Values that are compared are a copy with those of the gaps.
            filled = block * sample * (dtype.itemsize + 1 + 2 * source.infinite)
            encoding = max(encoding, source.filling_bytes(block) - filled) + filled
            decoding += filled + (decoded or block) * sample * itemsize
        # Before the first sample is decoded, components are read and their dual is computed. The mean is read, and
        # converted to that of samples without the filter.
        work = max(encoding, decoding + quality_bytes(source.shape[1:], dtype), 32 * sample + 16 * self.n_values)
        # Samples that are encoded again for a goal of each; their scores and waves; components, their multiples for
        # encoding and for decoding; two slabs and the mean.
        work += block * sample * dtype.itemsize
        work += 3 * itemsize * (block * self.n_positions + self.n_values + sample)
        return reading + SHARD_COPIES * written + work + TASK_OVERHEAD


def check_encode_memory(source: Source, budget: int, *, promised: bool) -> None:
    """Check that the tasks of an encoding fit ``budget`` bytes, with as few codes and components as possible.

    A store with an error bound can have components or none, so both must fit.

    Raises
    ------
    PlanError
    """
    for plain in (False, True) if promised else (False,):
        EncodeMemory(source, form_of(source, plain=plain), promised=promised).decoded_at_once(budget)


def form_of(source: Source, *, plain: bool = False) -> StoreForm:
    """Return the layout of the arrays of a store; ``plain`` as in `StoreForm`."""
    return StoreForm(tuple(source.shape), source.dtype.itemsize, plain, isinstance(source, TiledSource))

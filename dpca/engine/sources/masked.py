"""Samples in a region, with a constant outside, read in place."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from dpca.engine.sources.centered import WithConstant
from dpca.engine.sources.source import DerivedStack, Source, as_source
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.readers.arrays.zarr_array import ZarrReader
from dpca.storage.readers.masked import MaskedReader
from dpca.storage.stack import Stack


class MaskedSource(WithConstant):
    """Another source in a region, and a constant outside, where its values may be missing.

    Parameters
    ----------
    source : Source
    inside : array of bool (*sample_shape)
    fill_value : number
    """

    def __init__(self, source: Source, inside: Array, fill_value: Any) -> None:
        super().__init__(source, inside, source.dtype)
        self.fill_value = fill_value

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        out[...] = self.fill_value
        np.copyto(out, values, where=self._in(region))


@dataclass(frozen=True, eq=False)
class MaskedStack(DerivedStack):
    """A stack that is read as a `MaskedSource`: the samples of `MaskedReader`, without a copy on disk."""

    masked: MaskedReader = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, stack: Stack, mask: str) -> MaskedStack:
        """Read a stack in the region of a map.

        Raises
        ------
        DataError
            As `MaskedReader`.
        """
        own = {one.name: getattr(stack, one.name) for one in fields(Stack)}
        return cls(**own, masked=MaskedReader(ZarrReader(stack.path), mask))

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with the content and with the region."""
        return self.masked.fingerprint()

    def opened(self) -> Source:
        """Return the source of the samples in the region."""
        source = as_source(Stack(**{one.name: getattr(self, one.name) for one in fields(Stack)}))
        inside, shape = self.masked.inside, source.shape[1:]
        whole = inside.reshape(*inside.shape, *(1,) * (len(shape) - inside.ndim))
        return MaskedSource(source, np.broadcast_to(whole, shape), self.masked.fill_value)

"""Samples whose missing values are filled by a model when they are read."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np

from dpca.choices import INFINITE
from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.source import DerivedStack, Source, as_source
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.gaps import is_present
from dpca.models.base.store import load_any, model_fingerprint
from dpca.representation.gappy import GappyRepresentation
from dpca.storage.errors import DataError
from dpca.storage.stack import Stack

# Copies of a sample that the equations of missing values take, in floating point.
_COPIES = 6


class GapFilledSource(ComputedSource, Filled):
    """Samples of another source with missing values, NaN, replaced by their expectation under a stored model.

    Expectations are cut to the data range. Attributes that the model does not know have its lowest value.

    Parameters
    ----------
    source : Source
    model : str
        Path of a stored model with ``gaps="iterate"``; each process loads it once.
    data_range : (float, float)
    infinite : bool
        Whether infinities are missing values for the model, too.
    """

    def __init__(self, source: Source, model: str, data_range: tuple[float, float], *, infinite: bool = False) -> None:
        super().__init__(source, source.shape)
        self.axes, self.data_range, self.infinite = source.axes, data_range, infinite
        self.model = model if "://" in model else os.path.abspath(model)  # workers may be in another folder
        self.content = model_fingerprint(model)

    @property
    def gappy(self) -> Source:
        """The other source."""
        return self.source

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        out[...] = self.filled(values, first)[(slice(None), *(slice(*ends) for ends in region))]

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested samples, with those to fill its values."""
        return super().extra_bytes(region) + self.filling_bytes(min(self.read_rows(region), self.shape[0]))

    def filling_bytes(self, rows: int) -> int:
        """Return the bytes of temporary arrays of `filled`, with the result."""
        return _COPIES * 8 * rows * math.prod(self.shape[1:])

    def filled(self, samples: Array, first: int) -> Array:
        """Return samples without missing values. ``first`` is the number of the first one, for errors.

        Raises
        ------
        DataError
            If a value is infinite and not missing.
        """
        marks = INFINITE if self.infinite else None
        missing = ~named_errors(is_present, f"{self.name}, from sample {first} on")(samples, marks)
        low, high = self.data_range
        if not missing.any():
            return samples
        values = np.clip(_basis_of(self.model, self.content).filled(samples, self.name)[0][missing], low, high)
        filled = samples.copy()
        filled[missing] = np.nan_to_num(values, nan=low)
        return filled


@dataclass(frozen=True, eq=False)
class GapFilledStack(DerivedStack):
    """A stack with missing values that is read as a `GapFilledSource`."""

    model: str = field(kw_only=True)
    infinite: bool = field(kw_only=True)

    @classmethod
    def of(cls, stack: Stack, model: str, *, infinite: bool) -> GapFilledStack:
        """Fill the missing values of a stack that states its data range; with ``infinite``, also infinities."""
        own = {one.name: getattr(stack, one.name) for one in fields(Stack)}
        return cls(**own, model=model, infinite=infinite)

    def opened(self) -> Source:
        """Return the source of the filled samples."""
        stack = Stack(**{one.name: getattr(self, one.name) for one in fields(Stack)})
        if self.data_range is None:
            raise DataError(f"'{self.path}' states no data range: give it with --data-range LOW,HIGH (data_range)")
        return GapFilledSource(as_source(stack), self.model, self.data_range, infinite=self.infinite)


@lru_cache(maxsize=1)
def _basis_of(model: str, content: str) -> GappyRepresentation:
    """Load the basis of a model once in each process. ``content`` distinguishes models that replaced each other."""
    basis = load_any(model).basis_
    assert isinstance(basis, GappyRepresentation)
    return basis

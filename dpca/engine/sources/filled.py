"""Samples whose missing values are filled when they are read."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array


class Filled(ABC):
    """What a source of filled samples offers beside these: the samples with their gaps."""

    #: Whether infinities are missing values, too.
    infinite: bool = False

    @property
    @abstractmethod
    def gappy(self) -> Source:
        """The same samples, in which missing values are rejected."""

    @property
    def given(self) -> Source:
        """The samples with missing values: NaN, and infinities if they are missing, too."""
        source = copy.copy(self.gappy)
        source.with_gaps = True
        return source

    @abstractmethod
    def filled(self, samples: Array, first: int) -> Array:
        """Return samples of `given` without missing values. ``first`` is the number of the first one, for errors.

        Raises
        ------
        DataError
            If a value is infinite and not missing.
        """

    @abstractmethod
    def filling_bytes(self, rows: int) -> int:
        """Return the bytes of temporary arrays that `filled` takes for a number of samples, with the result."""

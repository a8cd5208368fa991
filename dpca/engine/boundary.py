"""The boundary of a task, where what arithmetic raises on hostile values becomes one sentence about the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dpca.engine.plan import PlanError
from dpca.rules.rule import DivergedError
from dpca.storage.errors import DataError, one_line

T = TypeVar("T")


def guarded(function: Callable[..., T], name: str, samples: tuple[int, int] | None = None) -> Callable[..., T]:
    """Return a function that does the same, and says in one sentence when the values are beyond its arithmetic.

    Rules are arrays in, arrays out: they raise ValueError or what their libraries do, and know neither source nor
    sample. numpy's warnings are not shown: what they warn of is refused where results are checked to be finite.

    The function returned raises DataError in place of ValueError (LinAlgError is one) and ArithmeticError. It calls the
    source by ``name`` and, where they are known, the first of its samples and the one behind the last.
    """

    def call(*arguments: object) -> T:
        try:
            with np.errstate(all="ignore"):
                return function(*arguments)
        except (DataError, PlanError):
            raise
        except (ValueError, ArithmeticError, RuntimeWarning) as error:  # a warning that the caller turned into an error
            where = name if samples is None else f"samples {samples[0]} to {samples[1] - 1} of {name}"
            if isinstance(error, DivergedError):  # which knows the remedy
                raise DataError(f"{where} cannot be analyzed so: {one_line(error)}") from error
            raise DataError(
                f"{where} cannot be analyzed ({one_line(error)}): divide all values by a constant so that their "
                f"squares are ordinary numbers of their type, or leave out the samples that differ from all others"
            ) from error

    return call

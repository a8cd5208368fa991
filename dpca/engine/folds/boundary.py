"""The boundary of a task. Arithmetic errors on extreme values become one error message that names the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.rules.base.rule import DivergedError
from dpca.storage.errors import DataError, one_line

T = TypeVar("T")


def named_errors(function: Callable[..., T], name: str, samples: tuple[int, int] | None = None) -> Callable[..., T]:
    """Wrap a function so that its arithmetic errors become a `DataError` that names the source and the samples.

    Rules map arrays to arrays. They raise ValueError or the errors of their libraries, and have no access to the source
    or the sample numbers. numpy's warnings are hidden, because results are checked to be finite.

    The wrapped function raises DataError instead of ValueError (of which LinAlgError is a subclass) and
    ArithmeticError. The message contains ``name`` and the range of ``samples`` (first, end), if it is given.
    """
    return _convert_errors(name, samples)(function)


@contextmanager
def _convert_errors(name: str, samples: tuple[int, int] | None) -> Iterator[None]:
    try:
        with np.errstate(all="ignore"):
            yield
    except (DataError, PlanError):
        raise
    except (ValueError, ArithmeticError, RuntimeWarning) as error:  # callers may turn warnings into errors
        where = name if samples is None else f"samples {samples[0]} to {samples[1] - 1} of {name}"
        if isinstance(error, DivergedError):  # its message contains the remedy
            raise DataError(f"{where} cannot be analyzed with these settings: {one_line(error)}") from error
        what, _, remedy = one_line(error).partition(": ")
        if remedy:
            raise DataError(f"{where} cannot be analyzed ({what}): {remedy}") from error
        raise DataError(
            f"{where} cannot be analyzed ({what}): divide all values by a constant so that their squares "
            f"are ordinary numbers of their dtype, or leave out outlying samples"
        ) from error

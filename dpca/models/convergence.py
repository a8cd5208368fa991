"""Whether a fit has converged, by what it knows of itself; and what to change if not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import sklearn.exceptions
from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.storage.errors import DataError

#: What every fit finds.
RESULT = ("components", "explained_variance", "total_variance", "mean")
# Share of the captured variance that the last part of a stream may move.
MOST_MOVED = 0.02
# Guaranteed share of the best components' variance above which movement of the default method is of no concern: in a
# merge tree it compares halves of a stream whose order may be any.
SAFE_BOUND = 0.9


class OrderWarning(UserWarning):
    """A rule that assumes samples in random order met a store, whose order it cannot know."""


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning):  # type: ignore[misc]
    """The components were still moving when the samples were used up."""


def unsettled(method: str, variance_moved: float, angle_moved: float, captured_bound: float) -> str | None:
    """Return what to tell about a fit that has not converged; None if it has, or if nothing is known."""
    if not variance_moved > MOST_MOVED or captured_bound >= SAFE_BOUND:
        return None
    known = "" if math.isnan(captured_bound) else f", with only {captured_bound:.0%} of the best guaranteed"
    change = (
        "a larger oversampling, or more passes (n_passes)"
        if method == "incremental-svd"
        else "more passes (n_passes), shuffle=True, a larger batch_size, another schedule or method='incremental-svd'"
    )
    return (
        f"{method} has not converged: the last part of the samples moved {variance_moved:.1%} of the captured "
        f"variance, where at most {MOST_MOVED:.0%} is expected, and turned the components by up to {angle_moved:.2f} "
        f"rad{known}: try {change}"
    )


def check_scale(
    results: Sequence[Mapping[str, Array]],
    what: str,
    dtype: DTypeLike | None = None,
    values: Callable[[], float] = lambda: 0.0,
) -> None:
    """Refuse results of values whose squares leave the range of floating-point numbers, where no variance is told.

    Parameters
    ----------
    results : sequence of dict
        ``mean``, ``components`` and ``total_variance`` of all attributes, or of each part of them.
    what : str
        What found them.
    dtype : dtype, optional
        Of arithmetic that takes the squares of samples, and in float64 those of variances. Default: variances are sums
        of squares in float64, and nothing else is.
    values : callable, optional
        Returns the magnitude of the samples. Asked only where variance and mean are 0, as those of zeros are: without
        centering there is no mean that tells tiny values from these.

    Raises
    ------
    DataError
    """
    d = sum(found["components"].shape[-1] for found in results)
    variance = sum(float(found["total_variance"]) for found in results) / d
    largest = max(float(np.abs(found["mean"]).max()) for found in results)
    check_level(math.sqrt(variance) or largest or values(), what, dtype)


def check_level(level: float, what: str, dtype: DTypeLike | None = None) -> None:
    """Refuse a size of deviations, 0 but for those of zeros, as `check_scale` does."""
    double = np.finfo(np.float64)
    least, most = math.sqrt(double.tiny), math.sqrt(double.max)
    if dtype is not None:
        own = np.finfo(dtype)
        least = max(math.sqrt(least), math.sqrt(own.tiny) / float(own.eps))
        most = min(math.sqrt(most), math.sqrt(own.max))
    if level and not least <= level <= most:
        raise DataError(
            f"{what} does not know the variance of values of about {level:.0e}, whose squares leave the range of "
            f"{np.dtype(dtype or np.float64)}: multiply the samples by a constant, so that they lie between "
            f"{least:.0e} and {most:.0e}"
        )


def check_result(
    found: dict[str, Array], what: str, names: Sequence[str] = RESULT, otherwise: str = ""
) -> dict[str, Array]:
    """Return what was found, refusing what is not finite.

    Parameters
    ----------
    found : dict
    what : str
        What found it.
    names : sequence of str
        What to look at.
    otherwise : str
        Another remedy than to scale the samples, for the end of the sentence.

    Raises
    ------
    DataError
    """
    wrong = [name for name in names if name in found and not np.isfinite(found[name]).all()]
    if wrong:
        dtype = found[names[0]].dtype
        raise DataError(
            f"{what} diverged, since its {' and '.join(wrong)} are not finite: divide the samples by a constant so "
            f"that their squares stay in the range of {dtype}{otherwise}"
        )
    return found

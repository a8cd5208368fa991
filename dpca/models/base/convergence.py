"""Checks of the result of a fit: convergence, finite values, and the scale of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import sklearn.exceptions
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError

#: The results of every fit.
RESULT = ("components", "explained_variance", "total_variance", "mean")
# A fit counts as converged if the last part of the stream changes at most this share of the captured variance.
MOST_MOVED = 0.02
# Certified share of the optimum above which changes of the default method do not matter: its merge tree compares two
# halves of a stream, and their order is arbitrary.
SAFE_BOUND = 0.9


class OrderWarning(UserWarning):
    """A rule that assumes randomly ordered samples was fitted to a store of unknown order."""


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning):  # type: ignore[misc]
    """The components had not converged at the end of the samples."""


def not_converged_message(method: str, variance_moved: float, angle_moved: float, captured_bound: float) -> str | None:
    """Return the warning about a fit that has not converged; None if it has, or if the change is unknown."""
    if not variance_moved > MOST_MOVED or captured_bound >= SAFE_BOUND:
        return None
    known = "" if math.isnan(captured_bound) else f", and only {captured_bound:.0%} of the optimum is certified"
    change = (
        "a larger oversampling or more passes (n_passes)"
        if method == "incremental-svd"
        else "more passes (n_passes), shuffle=True, a larger batch_size, another schedule or method='incremental-svd'"
    )
    return (
        f"{method} has not converged: the last part of the samples changed {variance_moved:.1%} of the captured "
        f"variance (at most {MOST_MOVED:.0%} is expected) and rotated the components by up to {angle_moved:.2f} "
        f"rad{known}: try {change}"
    )


def check_scale(
    results: Sequence[Mapping[str, Array]],
    what: str,
    dtype: DTypeLike | None = None,
    values: Callable[[], float] = lambda: 0.0,
) -> None:
    """Reject results if squares of the values overflow or underflow, because the variance is then lost.

    Parameters
    ----------
    results : sequence of dict
        ``mean``, ``components`` and ``total_variance`` of all attributes, or of each part; ``mean_largest`` if the mean
        is on disk.
    what : str
        The method, for the error message.
    dtype : dtype, optional
        The dtype in which samples are squared; variances are then squared, too, in float64. Default: only samples are
        squared, in float64.
    values : callable, optional
        Returns the magnitude of the samples. It is called only if variance and mean are 0: without centering no mean
        distinguishes tiny values from zeros.

    Raises
    ------
    DataError
    """
    d = sum(math.prod(found["components"].shape[1:]) for found in results)
    variance = sum(float(found["total_variance"]) for found in results) / d
    means = (found["mean_largest"] if "mean_largest" in found else found["mean"] for found in results)
    largest = max(max(map(abs, _extremes(mean))) for mean in means)
    check_deviation_scale(math.sqrt(variance) or largest or values(), what, dtype)


def check_deviation_scale(level: float, what: str, dtype: DTypeLike | None = None) -> None:
    """Reject a size of deviations as `check_scale` does; 0 is the size of constant zeros and passes."""
    double = np.finfo(np.float64)
    least, most = math.sqrt(double.tiny), math.sqrt(double.max)
    if dtype is not None:
        own = np.finfo(dtype)
        least = max(math.sqrt(least), math.sqrt(own.tiny) / float(own.eps))
        most = min(math.sqrt(most), math.sqrt(own.max))
    if level and not least <= level <= most:
        raise DataError(
            f"{what} cannot compute the variance: the values are about {level:.0e}, and their squares are outside the "
            f"range of {np.dtype(dtype or np.float64)}: multiply the samples by a constant, so that they lie between "
            f"{least:.0e} and {most:.0e}"
        )


def check_result(
    found: dict[str, Array], what: str, names: Sequence[str] = RESULT, otherwise: str = ""
) -> dict[str, Array]:
    """Return the results, after a check for values that are not finite. Results on disk were checked before.

    Parameters
    ----------
    found : dict
        The results.
    what : str
        The method, for the error message.
    names : sequence of str
        The results to check.
    otherwise : str
        Another remedy besides scaling the samples, for the end of the message.

    Raises
    ------
    DataError
    """
    in_memory = {name: found[name] for name in names if isinstance(found.get(name), np.ndarray)}
    wrong = [name for name, values in in_memory.items() if not np.isfinite(_extremes(values)).all()]
    if wrong:
        dtype = found[names[0]].dtype
        raise DataError(
            f"{what} diverged, as its {' and '.join(wrong)} are not finite: divide the samples by a constant so that "
            f"their squares stay in the range of {dtype}{otherwise}"
        )
    return found


def _extremes(values: Array) -> tuple[float, float]:
    """Return the smallest and the largest value, or NaN, without temporary arrays; 0 is one of the values."""
    return float(values.min(initial=0)), float(values.max(initial=0))

"""The tables of the page: theirs beside ours, and which differences are significant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.report.page import DataTable

_HEAD = ("mean, %", "sd", "trials", "beside {}", "standard error", "significant", "thesis, mean (sd)")


def comparison(
    heading: str,
    ours: Mapping[str, Array],
    theirs: Mapping[str, tuple[float, float]],
    reference: str,
    notes: Sequence[str] = (),
) -> DataTable:
    """Return a table of the accuracy of each row, in paired trials.

    Parameters
    ----------
    ours : mapping of str to array (n_trials,)
        In %, with the same trials in each row.
    theirs : mapping of str to (mean, sd)
        Published numbers; rows without ours are added.
    reference : str
        Row to compare the others with.
    """
    rows = []
    for name, values in ours.items():
        beside = ("", "", "")
        if name != reference:
            gap, error = paired(values, ours[reference])
            beside = (f"{gap:+.2f}", f"{error:.2f}", "yes" if abs(gap) >= 2 * error and gap else "no")
        rows.append(
            (name, f"{values.mean():.2f}", f"{spread(values):.2f}", str(len(values)), *beside, _of(theirs, name))
        )
    rows += [(name, "", "", "", "", "", "", _of(theirs, name)) for name in theirs if name not in ours]
    head = ("", *(entry.format(reference) for entry in _HEAD))
    return DataTable(
        heading, head, rows, (*notes, "Significant: a difference of at least two standard errors of the paired trials.")
    )


def paired(values: Array, others: Array) -> tuple[float, float]:
    """Return the mean difference of paired trials, and its standard error."""
    gap = values - others
    return float(gap.mean()), spread(gap) / math.sqrt(len(gap))


def spread(values: Array) -> float:
    """Return the standard deviation, nan for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def numbers(task: str, ours: Mapping[str, Array]) -> dict[str, Any]:
    """Return the numbers of each row for the report."""
    return {f"{task}, {name}": {"mean": np.mean(v), "sd": spread(v), "trials": len(v)} for name, v in ours.items()}


def _of(theirs: Mapping[str, tuple[float, float]], name: str) -> str:
    if name not in theirs:
        return ""
    mean, sd = theirs[name]
    return f"{mean:.2f} ({sd:.2f})"

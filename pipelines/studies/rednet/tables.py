"""The tables of the page: theirs beside ours, and which differences the trials can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.report.page import DataTable

_HEAD = ("mean, %", "sd", "trials", "beside {}", "standard error", "told apart", "thesis, mean (sd)")


def comparison(
    heading: str,
    ours: Mapping[str, Array],
    theirs: Mapping[str, tuple[float, float]],
    reference: str,
    notes: Sequence[str] = (),
) -> DataTable:
    """Return a table of the accuracy of each row, in trials that are paired.

    Parameters
    ----------
    ours : mapping of str to array (n_trials,)
        In %, the same trials in each.
    theirs : mapping of str to (mean, sd)
        By the same names, or others.
    reference : str
        The row that the others are compared with.
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
    return DataTable(heading, head, rows, (*notes, "Told apart: by two standard errors of the paired trials, or more."))


def paired(values: Array, others: Array) -> tuple[float, float]:
    """Return by how much values exceed others on average, and the standard error of that, of paired trials."""
    gap = values - others
    return float(gap.mean()), spread(gap) / math.sqrt(len(gap))


def spread(values: Array) -> float:
    """Return the standard deviation; that of a single value is not known."""
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def numbers(task: str, ours: Mapping[str, Array]) -> dict[str, Any]:
    """Return what the report keeps of each row."""
    return {f"{task}, {name}": {"mean": np.mean(v), "sd": spread(v), "trials": len(v)} for name, v in ours.items()}


def _of(theirs: Mapping[str, tuple[float, float]], name: str) -> str:
    if name not in theirs:
        return ""
    mean, sd = theirs[name]
    return f"{mean:.2f} ({sd:.2f})"

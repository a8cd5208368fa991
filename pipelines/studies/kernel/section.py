"""A part of the study's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from dpca.report.page import DataTable


class Section(NamedTuple):
    """Tables, figures with their captions (heading, sentence), and the numbers behind them."""

    tables: Sequence[DataTable]
    figures: Mapping[str, Figure]
    captions: Mapping[str, tuple[str, str]]
    numbers: Mapping[str, Any]

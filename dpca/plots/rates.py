"""A chart of the bytes and errors of several codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dpca.plots import drawing
from dpca.plots.drawing import ALERT
from dpca.storage.ranges import range_words


def rate_chart(
    store: tuple[float, float],
    others: Mapping[str, Sequence[tuple[float, float]]],
    data_range: tuple[float, float] | None = None,
) -> Figure:
    """Draw the PSNR of a store and of other codecs against the bytes per sample.

    Parameters
    ----------
    store : (float, float)
        Bytes per sample, and PSNR in decibels.
    others : mapping of str to sequence of (float, float)
        Bytes and PSNR of each codec's settings; lossless ones are left out.
    data_range : (float, float), optional
        Data range of the PSNR, for the label of its axis.
    """
    figure, axes = drawing.chart(
        "bytes per sample", "PSNR, dB" + (f" ({range_words(data_range)})" if data_range else "")
    )
    for name, points in others.items():
        finite = [point for point in points if math.isfinite(point[1])]
        if finite:
            axes.plot(*zip(*finite, strict=True), marker="o", markersize=3, linewidth=1.2, label=name)
    if math.isfinite(store[1]):
        axes.plot(*store, marker="D", markersize=8, color=ALERT, linestyle="", label="this store")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    drawing.legend(axes)
    return figure

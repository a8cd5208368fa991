"""Charts of many lines: each has its points and its own style, and the legend lists them by their last value."""

from __future__ import annotations

import io

import numpy as np
import pytest

from dpca import plots


def test_lines_are_the_points_and_the_legend_ends_with_the_best() -> None:
    lines = [
        ("incremental-svd", [100, 1000, 10_000], [-1.0, -4.0, -7.5]),
        ("oja", [100, 1000, 10_000], [-0.5, -1.0, -2.0]),
        ("ccipca", [100, 1000], [-0.2, -0.4]),
        ("never began", [], []),
    ]
    figure = plots.convergence(lines, "samples seen", emphasized="incremental-svd")
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["ccipca  -0.40", "oja  -2.00", "incremental-svd  -7.50"]
    drawn = {str(line.get_label()).split("  ")[0]: line for line in axes.get_lines()}
    np.testing.assert_array_equal(drawn["oja"].get_xdata(), [100, 1000, 10_000])
    np.testing.assert_array_equal(drawn["oja"].get_ydata(), [-0.5, -1.0, -2.0])
    assert drawn["incremental-svd"].get_linewidth() > drawn["oja"].get_linewidth()
    assert axes.get_xscale() == "log"
    figure.savefig(io.BytesIO(), format="png")


def test_a_perfect_rule_lies_on_the_floor_of_float64() -> None:
    figure = plots.convergence([("exact", [10], [-np.inf])], "seconds")
    assert figure.axes[0].get_lines()[0].get_ydata()[0] == -15
    figure.savefig(io.BytesIO(), format="png")


def test_what_is_no_number_is_left_out_and_not_called_perfect() -> None:
    figure = plots.convergence({"a": ([0, 1, 2, 3, 4], [-9.0, np.nan, -2.0, np.inf, -1.0]), "b": ([1], [np.nan])})
    told = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert told == ["a  -1.00"]
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_xdata(), [2, 4])


def test_twelve_rules_are_told_apart() -> None:
    lines = [(f"rule {i}", [1, 2], [-i, -i]) for i in range(12)]
    styles = {
        (line.get_color(), str(line.get_linestyle()), str(line._unscaled_dash_pattern))
        for line in plots.convergence(lines, "samples", emphasized="rule 3").axes[0].get_lines()[:12]
    }
    assert len(styles) == 12


def test_no_line_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="convergence"):
        plots.convergence([("none", [], [])], "samples")


def test_curves_are_the_shares_and_the_legend_begins_with_the_highest() -> None:
    figure = plots.explained_variance(
        {"holistic": [0.3, 0.5, 0.6], "cells": [0.7, 0.8], "none": []}, emphasized="holistic"
    )
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["cells  80.0%", "holistic  60.0%"]
    lines = {str(line.get_label()).split("  ")[0]: line for line in axes.get_lines()}
    np.testing.assert_array_equal(lines["holistic"].get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(lines["holistic"].get_ydata(), [0.3, 0.5, 0.6])
    assert lines["holistic"].get_linewidth() > lines["cells"].get_linewidth()
    figure.savefig(io.BytesIO(), format="png")
    with pytest.raises(ValueError, match="explained"):
        plots.explained_variance({"a": []})

"""The figure of convergence: every rule once, on its own points."""

from __future__ import annotations

import io

import numpy as np
import pytest

from dpca.pipelines.studies.convergence.plots import convergence_curves


def test_lines_are_the_points_and_the_legend_ends_with_the_best() -> None:
    lines = [
        ("incremental-svd", [100, 1000, 10_000], [-1.0, -4.0, -7.5]),
        ("oja", [100, 1000, 10_000], [-0.5, -1.0, -2.0]),
        ("ccipca", [100, 1000], [-0.2, -0.4]),
        ("never began", [], []),
    ]
    figure = convergence_curves(lines, "samples seen", emphasized="incremental-svd")
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
    figure = convergence_curves([("exact", [10], [-np.inf])], "seconds")
    assert figure.axes[0].get_lines()[0].get_ydata()[0] == -15
    figure.savefig(io.BytesIO(), format="png")


def test_twelve_rules_are_told_apart() -> None:
    lines = [(f"rule {i}", [1, 2], [-i, -i]) for i in range(12)]
    styles = {
        (line.get_color(), str(line.get_linestyle()), str(line._unscaled_dash_pattern))
        for line in convergence_curves(lines, "samples", emphasized="rule 3").axes[0].get_lines()[:12]
    }
    assert len(styles) == 12


def test_no_line_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no convergence to show"):
        convergence_curves([("none", [], [])], "samples")

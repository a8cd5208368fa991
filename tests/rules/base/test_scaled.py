"""Step sizes in units of the data: the same path whatever the unit of the pixels, and no divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.rules import (
    AcceleratedOja,
    Constant,
    Delayed,
    Harmonic,
    ImplicitKrasulina,
    Krasulina,
    Oja,
    OjaSubspace,
    Sanger,
)
from tests.rules.streams import fit, fold, leading, lost_variance, planted, same_span

KINDS = [Oja, OjaSubspace, Krasulina, Sanger, ImplicitKrasulina, AcceleratedOja]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**30])
def test_the_scale_of_the_data_does_not_matter(kind: Any, factor: float) -> None:
    x = planted(1000)
    rule = kind(3, Delayed(0.5, 50.0), unit=None, seed=2)
    a, b = fit(rule, x, rows=20), fit(rule, factor * x, rows=20)
    np.testing.assert_allclose(a["components"], b["components"], atol=1e-9)
    np.testing.assert_allclose(a["explained_variance"] * factor**2, b["explained_variance"], rtol=1e-7)


@pytest.mark.parametrize("kind", [OjaSubspace, Krasulina, Sanger])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_what_is_measured_is_the_largest_variance_of_a_batch(kind: Any, rows: int) -> None:
    x = planted(700)
    state = fold(kind(3, Constant(0.1), unit=None), x, rows=rows)
    means = np.cumsum(x, axis=0) / np.arange(1, 701)[:, None]
    largest = max(
        np.linalg.norm(x[i : i + rows] - means[i + rows - 1], 2) ** 2 / rows for i in range(0, 700 - rows + 1, rows)
    )
    assert 0.9 * largest < float(state.arrays["largest"]) <= largest * (1 + 1e-9)


def test_one_step_has_the_size_that_was_asked_for() -> None:
    x = np.zeros((4, 5))
    x[:2, 1], x[2:, 1] = 3, -3
    rule = OjaSubspace(1, Constant(0.25), unit=None)
    before = rule.init(5, float).arrays["components"].copy()
    after = fold(rule, x).arrays["components"]
    # Of variance 9 in unit 3: w + eta (C w - w w^T C w), C = e e^T.
    w = before[0, 1]
    expected = before * (1 - 0.25 * w**2)
    expected[0, 1] += 0.25 * w
    np.testing.assert_allclose(after, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [OjaSubspace, Sanger])
@pytest.mark.parametrize("rows", [1, 100])
def test_pixels_of_any_scale_do_not_diverge(kind: Any, rows: int) -> None:
    x = 1000 * planted(3000)
    with pytest.raises(ValueError, match="unit"):
        fit(kind(3, Harmonic(1.0), unit=1.0), x, rows=rows)
    found = fit(kind(3, Delayed(0.5, 100.0), unit=None), x, rows=rows)
    assert lost_variance(found["components"], x) < 0.02


def test_sanger_finds_the_eigenvectors_in_order() -> None:
    x = 255 * planted(20_000)
    state = fold(Sanger(3, Delayed(0.5, 100.0), unit=None), x, rows=50)
    np.testing.assert_allclose(np.abs(state.arrays["components"] @ leading(x, 3)[1].T), np.eye(3), atol=0.06)


def test_no_variance_is_no_problem() -> None:
    for kind in KINDS:
        found = fit(kind(2, unit=None), np.full((50, 4), 7.0), rows=10)
        assert np.isfinite(found["components"]).all()
        np.testing.assert_allclose(found["explained_variance"], 0, atol=1e-12)


def test_implicit_krasulina_begins_at_the_length_of_the_data() -> None:
    x = planted(400)
    for online in (False, True):
        measured = ImplicitKrasulina(3, unit=None, online=online)
        first = fold(measured, x[:100], rows=100)
        unit = float(np.sqrt(first.arrays["largest"]))
        given = ImplicitKrasulina(3, unit=unit, online=online)
        a, b = fold(measured, x, rows=100), fold(given, x, rows=100)
        np.testing.assert_allclose(a.arrays["components"], b.arrays["components"], rtol=1e-9)
        assert same_span(measured.finish(a)["components"], given.finish(b)["components"])


@pytest.mark.parametrize("kind", [Oja, AcceleratedOja])
def test_rules_that_see_sums_alone_measure_in_the_span_of_their_rows(kind: Any) -> None:
    """Never more than the largest variance of a batch, and nearly that once the rows have found it."""
    x = planted(4000)
    state = fold(kind(3, Constant(0.1), unit=None), x, rows=100)
    means = np.cumsum(x, axis=0) / np.arange(1, 4001)[:, None]
    batches = [np.linalg.norm(x[i : i + 100] - means[i + 99], 2) ** 2 / 100 for i in range(0, 4000, 100)]
    assert 0.9 * np.median(batches) < float(state.arrays["largest"]) <= max(batches) * (1 + 1e-6)

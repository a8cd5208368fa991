"""Gaps of cells that are filled by the components of an encoding."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.codec.cells import Components
from dpca.partition.cells import CellGrid
from dpca.partition.shared import groups_of
from dpca.representation.compressed import gap_filling
from dpca.representation.compressed.gap_filling import CellFilling, cell_filling_bytes
from tests.helpers.traced import traced_peak

SHAPE, CELL = (22, 17), (6, 5)


def filling(k: int = 3, *, shared: bool = True) -> tuple[CellFilling, Components, list[np.ndarray]]:
    rng, grid = np.random.default_rng(0), CellGrid(SHAPE, CELL)
    cells, group = groups_of(grid, shared=shared)
    sizes = [grid.n_features(members[0]) for members in cells]
    rows = [np.linalg.qr(rng.normal(size=(d, min(k, d))))[0].T for d in sizes]
    components = Components(grid, rng.normal(10, 3, SHAPE), group, rows)
    variances = [10.0 ** -np.arange(len(one)) for one in rows]
    totals = [float(one.sum()) + 0.01 * (d - len(one)) for one, d in zip(variances, sizes, strict=True)]
    return CellFilling.of(components, variances, totals), components, variances


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("row_bytes", [2**23, 1])
def test_gaps_have_their_conditional_expectation(shared: bool, row_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a normal distribution, by its definition; cells without any value have their mean."""
    monkeypatch.setattr(gap_filling, "_ROW_BYTES", row_bytes)
    fill, components, variances = filling(shared=shared)
    rng = np.random.default_rng(1)
    x = rng.normal(10, 3, (7, *SHAPE))
    x[rng.random(x.shape) < 0.4] = np.nan
    x[2, :13, :9], x[:, 12:18, 5:10], x[4] = np.nan, np.nan, np.nan
    found = fill.filled(x)
    assert not np.isnan(found).any()
    for cell in range(components.grid.n_parts):
        at = tuple(slice(*ends) for ends in components.grid.box(cell))
        g = components.group[cell]
        rows, mean = components.rows[g], components.mean[at].ravel()
        noise = 0.01
        covariance = rows.T @ np.diag(variances[g] - noise) @ rows + noise * np.eye(len(mean))
        for one, filled in zip(x[(slice(None), *at)], found[(slice(None), *at)], strict=True):
            here = ~np.isnan(one.ravel())
            np.testing.assert_array_equal(filled.ravel()[here], one.ravel()[here])
            expected = mean[~here].copy()
            if here.any():
                known = np.linalg.solve(covariance[np.ix_(here, here)], one.ravel()[here] - mean[here])
                expected += covariance[np.ix_(~here, here)] @ known
            np.testing.assert_allclose(filled.ravel()[~here], expected, rtol=1e-6, atol=1e-6)


def test_it_is_restored_from_arrays() -> None:
    fill = filling()[0]
    again = CellFilling.from_arrays(fill.arrays, fill.facts)
    x = np.where(np.random.default_rng(2).random((3, *SHAPE)) < 0.5, np.nan, 11.0)
    np.testing.assert_array_equal(again.filled(x), fill.filled(x))


def test_a_group_without_components_has_its_mean() -> None:
    grid = CellGrid(SHAPE, CELL)
    cells, group = groups_of(grid, shared=True)
    mean, rows = np.random.default_rng(0).normal(size=SHAPE), [np.zeros((0, grid.n_features(c[0]))) for c in cells]
    rows[0] = np.eye(1, grid.n_features(cells[0][0]))
    fill = CellFilling.of(Components(grid, mean, group, rows), [np.ones(len(r)) for r in rows], [1.0] * len(rows))
    x = np.where(np.random.default_rng(2).random((3, *SHAPE)) < 0.5, np.nan, mean)
    np.testing.assert_allclose(fill.filled(x), np.broadcast_to(mean, x.shape))


def test_the_peak_is_at_most_as_planned() -> None:
    rng, grid = np.random.default_rng(0), CellGrid((120, 130), (10, 10))
    _, group = groups_of(grid, shared=True)
    components = Components(grid, np.zeros((120, 130)), group, [np.linalg.qr(rng.normal(size=(100, 40)))[0].T])
    fill = CellFilling.of(components, [np.ones(40)], [41.0])
    x = np.where(rng.random((16, 120, 130)) < 0.5, np.nan, 1.0)
    planned = cell_filling_bytes(16, (120, 130), 8)
    peak, _ = traced_peak(lambda: None, lambda _: fill.filled(x), planned)
    assert peak <= planned

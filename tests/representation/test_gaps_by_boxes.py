"""Large samples with gaps in stores are encoded and filled in boxes: the results of whole samples, up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, CellPCA
from dpca.representation import by_blocks
from dpca.representation.gappy import GappyRepresentation
from tests.helpers.patterned import patterned

SHAPE, GAPPY = (41, 52, 3), {"gaps": "iterate", "random_state": 0}
MODELS: dict[str, Any] = {
    "few components": PCA(3, **GAPPY),
    "components for the compiled solver": PCA(10, **GAPPY),
    "cells": CellPCA(3, cell_shape=(6, 9), **GAPPY),
    "a marker in integers": PCA(3, missing_value=0, **GAPPY),
    "cells of integers": CellPCA(2, cell_shape=8, missing_value=0, **GAPPY),
}


def with_gaps(marked: bool) -> tuple[Any, Any]:
    """Return samples with clouds, land without values, a complete sample, and one without values; and what is there."""
    x = patterned(24, SHAPE, "uint8" if marked else "float32", 0)
    x = np.maximum(x, 1) if marked else x
    there = np.random.default_rng(1).random((24, 41, 13, 1)).repeat(4, axis=2).repeat(3, axis=3) > 0.3
    there[:, 10:14, :9] = False
    if not marked:
        there[4] = True
        there[4, 10:14, :9] = False
    there[7] = False
    return np.where(there, x, 0 if marked else np.nan).astype(x.dtype), there


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let all samples be large and boxes small; return the number of values of each sample that a task fills."""
    seen, filled = list[int](), GappyRepresentation.filled

    def filling(basis: Any, samples: Any, *given: Any) -> Any:
        seen.append(samples[0].size)
        return filled(basis, samples, *given)

    monkeypatch.setattr(by_blocks, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(by_blocks, "_TASK_BYTES", 2**16)
    monkeypatch.setattr(GappyRepresentation, "filled", filling)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_boxes_are_those_of_whole_samples(name: str, small: list[int], tmp_path: Path) -> None:
    model = MODELS[name]
    x, there = with_gaps(model.missing_value == 0)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(2, 11, 20, 3))
    methods = "transform", "score_errors", "fill", "fill_errors"
    model.fit(x)
    expected = {method: getattr(model, method)(x) for method in methods}
    small.clear()
    for given in (path, da.from_array(x, chunks=(4, 41, 13, 3))):
        for method in methods:
            found, values = getattr(model, method)(given), expected[method]
            assert isinstance(found, da.Array)
            assert (found.shape, found.dtype) == (values.shape, values.dtype)
            scale = np.abs(expected["transform" if "fill" not in method else "fill_errors"])
            least = 1 if found.dtype.kind in "iu" else 1e-4 * np.nanmax(scale)  # a tie is rounded up or down
            np.testing.assert_allclose(found.compute().astype(float), values.astype(float), rtol=1e-4, atol=least)
    assert len(small) > 30
    assert max(small) < x[0].size
    filled = model.fill(path).compute()
    np.testing.assert_array_equal(filled[there], x[there])
    land = ~there.any(axis=0)
    np.testing.assert_array_equal(filled[:, land], x[:, land])
    if model.missing_value is None:
        complete = model.score_errors(path).compute()[4]
        # Rounding errors of the products of components must not look like missing values.
        assert not complete.any() or isinstance(model, CellPCA)


def test_the_scores_of_whole_samples_solve_the_equations_of_their_values(small: list[int]) -> None:
    """Against the conditional expectation under the covariance of the model (Tipping & Bishop 1999), densely."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 80)) * 3 + rng.normal(size=(60, 80))
    x[rng.random(x.shape) < 0.4] = np.nan
    model = PCA(2, **GAPPY).fit(x)
    v, k, d = model.components_, 2, 80
    noise = (model.total_variance_ - model.explained_variance_.sum()) / (d - k)
    covariance = (v.T * (model.explained_variance_ - noise)) @ v + noise * np.eye(d)
    filled = np.asarray(model.fill(da.from_array(x, chunks=(20, 30))))
    errors = np.asarray(model.fill_errors(da.from_array(x, chunks=(20, 30))))
    scores = np.asarray(model.transform(da.from_array(x, chunks=(20, 30))))
    for row, own, error, score in zip(x, filled, errors, scores, strict=True):
        o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        gain = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)]).T
        np.testing.assert_allclose(own[m], model.mean_[m] + gain @ (row[o] - model.mean_[o]), rtol=1e-6, atol=1e-6)
        left = covariance[np.ix_(m, m)] - gain @ covariance[np.ix_(o, m)]
        np.testing.assert_allclose(error[m], np.sqrt(np.diag(left)), rtol=1e-4)
        np.testing.assert_allclose(score, v @ (own - model.mean_), rtol=1e-6, atol=1e-6)

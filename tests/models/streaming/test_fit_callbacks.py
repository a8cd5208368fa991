"""Looks at fits, by hand: of fields, of several passes, and on a cluster; when they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from sklearn.base import clone

from dpca import EOF, PCA, CellPCA, Progress, StreamingPCA
from dpca.engine.folds.callbacks import Pace
from dpca.storage.run import Run
from tests.conftest import smooth_images

N, SHAPE = 300, (6, 5, 3)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N, SHAPE)


def eigenvalues(rows: np.ndarray, k: int) -> np.ndarray:
    """Of the covariance, by singular values."""
    rows = rows.reshape(len(rows), -1).astype(float)
    return np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:k] ** 2 / (len(rows) - 1)


@pytest.mark.parametrize("solver", ["covariance", "randomized", "orthogonal-iteration"])
def test_looks_are_analyses_of_the_samples_so_far(solver: str, images: np.ndarray) -> None:
    told: list[Progress] = []
    rows = np.tile(images, (8, 1, 1, 1))
    PCA(3, solver=solver, random_state=0).fit(rows, callback=told.append)
    assert len(told) > 2
    for one in told:
        cuts = one.model.fit_report_.plan.segments
        n = one.n_samples_seen  # of segments side by side, which may differ in length
        each = next(e for e in range(n + 1) if sum(min(e, stop - start) for start, stop in cuts) == n)
        expected = eigenvalues(np.concatenate([rows[start : min(start + each, stop)] for start, stop in cuts]), 3)
        found = one.model.explained_variance_
        if solver == "covariance":
            np.testing.assert_allclose(found, expected, rtol=1e-9)
        # By Cauchy's interlacing theorem a basis never has more, and iterations come close.
        assert found.sum() <= expected.sum() * (1 + 1e-5)
    np.testing.assert_allclose(told[-1].model.explained_variance_, eigenvalues(rows, 3), rtol=1e-4)


def test_modes_of_a_field_so_far(images: np.ndarray) -> None:
    values = images[:, :, :, 0].astype(float)
    values[:, 2, 1:3] = np.nan
    field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": np.arange(N)})
    sea = ~np.isnan(values[0])
    told: list[Progress] = []
    model = EOF(3, n_passes=1)
    assert model.fit(field, callback=told.append) is model
    assert [one.finished for one in told] == [False] * (len(told) - 1) + [True]
    assert told[0].n_samples_seen == 16
    for one in told:
        n = one.n_samples_seen
        np.testing.assert_allclose(one.model.explained_variance_, eigenvalues(values[:n, sea], 3), rtol=1e-9)
        assert one.model.eofs().dims == ("mode", "lat", "lon")
        assert one.model.project(field).shape == (N, 3)
        assert one.captured_variance == pytest.approx(float(one.model.explained_variance_ratio_.sum()))
    part = EOF(3, n_passes=1).fit(field, max_samples=64)
    assert part.n_samples_seen_ == 64
    np.testing.assert_array_equal(part.explained_variance_, told[1].model.explained_variance_)
    with pytest.raises(ValueError, match="mine"):
        EOF(3).fit(field, callback=_refused)


@pytest.mark.parametrize(
    "model",
    [CellPCA(2, cell_shape=3), StreamingPCA(3, method="incremental-svd", batch_size=20, random_state=0)],
    ids=["cells", "merged"],
)
def test_on_a_cluster_looks_come_here_and_change_nothing(
    model: Any, images: np.ndarray, tmp_path: Path, cluster: Any
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(16, *SHAPE))
    told: list[Progress] = []
    found = clone(model).fit(str(tmp_path / "x.zarr"), run=Run(client=cluster), callback=told.append)
    assert len(told) > 2
    expected = clone(model).fit(str(tmp_path / "x.zarr"), run=Run(client=cluster))
    np.testing.assert_array_equal(found.components_, expected.components_)
    assert told[0].model.transform(images).shape == found.transform(images).shape
    ended = clone(model).fit(str(tmp_path / "x.zarr"), run=Run(client=cluster), callback=lambda one: True)
    np.testing.assert_array_equal(ended.components_, told[0].model.components_)
    assert clone(model).fit(
        str(tmp_path / "x.zarr"), run=Run(client=cluster), max_samples=100
    ).n_samples_seen_ in range(100, N)
    with pytest.raises(ValueError, match="mine"):
        clone(model).fit(str(tmp_path / "x.zarr"), run=Run(client=cluster), callback=_refused)


def _refused(told: Progress) -> None:
    raise ValueError("mine")


def test_looks_come_early_and_then_take_a_twentieth_of_the_time() -> None:
    now, seen, n = [0.0], [], 0
    pace = Pace(every=1.0, max_seconds=100.0, clock=lambda: now[0])
    while not pace.is_over:
        until = pace.until(n)
        assert until > n
        now[0] += (until - n) / 2000  # samples a second
        n = until
        if pace.arrived(n):
            seen.append((n, now[0]))
            now[0] += 0.2
            pace.called_back(0.2)
    assert [n for n, _ in seen[:4]] == [16, 64, 256, 1024]
    later = [time for _, time in seen[4:]]
    assert np.diff(later) == pytest.approx(4.0, abs=0.3)
    assert now[0] == pytest.approx(100, abs=0.3)


def test_links_without_looks_end_with_the_budget() -> None:
    pace = Pace(every=float("inf"))  # a budget of samples alone
    assert not pace.arrived(until := pace.until(0))
    assert until < pace.until(until) <= 5 * until
    now, n = [0.0], 0
    pace = Pace(every=float("inf"), max_seconds=10.0, clock=lambda: now[0])
    while not pace.is_over:
        until = pace.until(n)
        now[0], n = now[0] + (until - n) / 1000, until
        assert not pace.arrived(n)
    assert now[0] == pytest.approx(10, abs=0.1)

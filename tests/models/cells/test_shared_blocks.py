"""Shared cells of samples that fit no task: fitted by blocks of cells, with the results of whole samples."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import CellPCA, Progress
from dpca.engine.folds.plan import Outline, PlanError
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.models.cells import cells_on_disk, partition_rule
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.helpers.forked import Programs, printed_by

LEARNED = ("components_", "mean_", "explained_variance_", "total_variance_", "ranks_")
PROGRAM = Path(__file__).with_name("shared_to_kill.py")
# Sample shape, cell shape, chunks of a sample: ragged edges along all axes, and chunks that do not end where cells do.
STACKS = {
    "image": ((401, 503), 12, (120, 120)),
    "whole chunks": ((401, 503), 12, (401, 503)),
    "channels": ((305, 300, 3), (8, 9), (64, 90, 3)),
    "volume": ((30, 90, 81), (5, 6, 7), (30, 16, 20)),
    "series": ((300_003,), 50, (7000,)),
}


def samples(shape: tuple[int, ...], dtype: Any, n: int = 6) -> np.ndarray:
    """A few patterns and noise around a mean that differs from place to place."""
    rng, d = np.random.default_rng(0), int(np.prod(shape))
    waves = [np.outer(rng.normal(size=n), np.sin(np.arange(d) / period)) for period in (3, 11, 170)]
    x = 20 * sum(waves) + rng.normal(scale=3, size=(n, d)) + np.linspace(60, 140, d)
    return (np.clip(x, 0, 255) if np.dtype(dtype) == np.uint8 else 100 * x).astype(dtype).reshape(n, *shape)


def fit(x: Any, cell: Any, megabytes: int | None = 33, *, run: Run = Run(), **options: Any) -> CellPCA:
    memory = None if megabytes is None else megabytes * 10**6
    model = CellPCA(**{"n_components": 3} | options, cell_shape=cell, shared=True, memory_budget=memory)
    return model.fit(x, run=run)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return samples(STACKS["image"][0], np.uint8)


@pytest.mark.pairwise
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize(("megabytes", "threads"), [(30, 1), (33, 2)])
def test_blocks_of_cells_give_what_whole_samples_give(
    stack: str, dtype: Any, megabytes: int, threads: int, tmp_path: Path
) -> None:
    shape, cell, chunks = STACKS[stack]
    x = samples(shape, dtype)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, *chunks))
    whole = fit(x, cell, None)
    assert whole.fit_report_.note == ""
    room = megabytes + (0 if dtype in (np.uint8, np.int16) else 6)
    model = fit(str(tmp_path / "x.zarr"), cell, room, run=Run(threads=threads))
    assert "blocks" in model.fit_report_.note
    assert model.fit_report_.plan.task_bytes <= room * 10**6
    boxes = [np.prod([b - a for a, b in group.region]) for group in model.fit_report_.plan.groups]
    assert max(boxes) < np.prod(shape)
    for name in LEARNED:
        found, expected = getattr(model, name), getattr(whole, name)
        if np.dtype(dtype).kind in "iu":
            np.testing.assert_array_equal(found, expected, err_msg=name)
        else:
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, atol=2e-5 * scale, err_msg=name)


def test_they_are_the_eigenvectors_of_the_covariance_within_cells() -> None:
    """float32 far from 0, so that products about anything but the mean of each cell would lose all digits."""
    x = samples((401, 503), np.float32) + np.float32(1e5)
    model = fit(x, 12, 40)
    assert "blocks" in model.fit_report_.note
    for rows, columns in (
        (slice(0, 396), slice(0, 492)),
        (slice(396, 401), slice(0, 492)),
        (slice(396, 401), slice(492, 503)),
    ):
        part = x[:, rows, columns].astype(float)
        height, width = min(12, part.shape[1]), min(12, part.shape[2])
        part -= part.mean(axis=0)
        cells = part.reshape(6, part.shape[1] // height, height, part.shape[2] // width, width)
        cells = cells.swapaxes(2, 3).reshape(6, -1, height * width)
        covariance = np.einsum("npa,npb->ab", cells, cells) / 5 / cells.shape[1]
        values, vectors = np.linalg.eigh(covariance)
        place = (rows.start // 12, columns.start // 12)
        np.testing.assert_allclose(model.explained_variance_[place], values[::-1][:3], rtol=1e-4)
        here = (slice(rows.start, rows.start + height), slice(columns.start, columns.start + width))
        found = model.components_[(slice(None), *here)].reshape(3, -1)
        assert np.linalg.svd(found @ vectors[:, ::-1][:, :3], compute_uv=False).min() > 1 - 1e-5
    np.testing.assert_allclose(model.mean_, x.mean(axis=0, dtype=float), rtol=1e-7)


def test_cells_that_overlap_are_read_with_their_neighbors(images: np.ndarray) -> None:
    whole, model = (fit(images, 12, room, overlap=3) for room in (None, 36))
    assert "blocks" in model.fit_report_.note
    for name in LEARNED:
        expected = getattr(whole, name)
        np.testing.assert_allclose(getattr(model, name), expected, atol=1e-4 * np.abs(expected).max(), err_msg=name)


def test_more_samples_and_targets_follow_from_the_joined_state(images: np.ndarray) -> None:
    whole, model = (fit(images, 12, room, keep_state=True) for room in (None, 33))
    assert "blocks" in model.fit_report_.note
    for one in (whole, model):
        one.partial_fit(images[::-1] // 2)
    others = {"target_mse": 1e-4}, {"ratio": 20}, {"threshold": 0.9}
    pairs = [
        [fit(images, 12, room, n_components=None, max_components=40, **other) for room in (None, 33)]
        for other in others
    ]
    for one, other in [(whole, model), *pairs]:
        for name in LEARNED:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert pairs[0][0].target_reached_ == pairs[0][1].target_reached_ <= 1e-4


def test_the_model_so_far_of_a_callback(images: np.ndarray, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(1, 120, 120))
    model = CellPCA(3, cell_shape=12, shared=True, memory_budget=33 * 10**6)
    seen = list[Progress]()
    model.fit(str(tmp_path / "x.zarr"), max_samples=3, callback=seen.append)
    expected = fit(images[:3], 12, None)
    assert seen[-1].n_samples_seen == 3
    for name in LEARNED:
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))


def test_workers_of_a_cluster(images: np.ndarray, tmp_path: Path, cluster: Any) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(1, 120, 120))
    whole = fit(images, 12, None)
    for x in (str(tmp_path / "x.zarr"), da.from_array(images, chunks=(2, 100, 503))):
        model = fit(x, 12, 36, run=Run(client=cluster))
        assert "blocks" in model.fit_report_.note
        np.testing.assert_array_equal(model.components_, whole.components_)


def test_a_killed_fit_resumes_with_the_blocks_that_are_finished(
    images: np.ndarray, tmp_path: Path, programs: Programs
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(1, 120, 120))
    command = [sys.executable, str(PROGRAM), *map(str, (tmp_path / "x.zarr", tmp_path / "kept", tmp_path / "out.npz"))]
    killed = programs.start([*command, "0.5"])
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "kept").rglob("*.npz"))) < 2:
        assert killed.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    n_blocks, n_finished = map(int, printed_by(programs, [*command, "0"]).split())
    assert 2 <= n_finished < n_blocks
    expected = fit(images, 12, None)
    with np.load(tmp_path / "out.npz") as found:
        for name in LEARNED:
            np.testing.assert_array_equal(found[name], getattr(expected, name))


def test_a_rehearsal_and_a_plan_know_the_blocks(images: np.ndarray, tmp_path: Path) -> None:
    with rehearsing(Workers(1, 1, 33 * 10**6), str(tmp_path)) as rehearsal:
        fit(images, 12)
    (cost,) = rehearsal.costs
    assert len(cost.planned(rehearsal.workers).groups) > 1
    assert cost.seconds(rehearsal.workers) > 0
    model = CellPCA(8, cell_shape=20, shared=True, memory_budget=300 * 10**6)
    outline = Outline("x", (8, 8000, 8000), np.dtype("u1"), (1, 1000, 1000))
    basis, is_exact = model.plan_fit(outline, ("y", "x"), Run())
    assert is_exact
    assert basis.components.shape == (8, 8000, 8000)


def test_without_memory_for_a_block_or_for_the_model_it_is_refused(
    images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlanError, match="smaller"):
        fit(images, 12, 26)
    monkeypatch.setattr(partition_rule, "usable_bytes", lambda: 8 * images[0].size)
    with pytest.raises(PlanError, match="components"):
        fit(images, 12)


def test_components_on_disk_are_not_planned_in_memory(images: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fit(images, 12, n_components=140)
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    disk = fit(images, 12, n_components=140)
    assert isinstance(disk.components_, da.Array)
    np.testing.assert_array_equal(disk.components_, memory.components_)
    planned = [model.fit_report_.plan.result_bytes for model in (memory, disk)]
    assert planned[0] - planned[1] > 2 * memory.components_.nbytes / 3


def test_a_value_that_is_not_finite_is_reported(images: np.ndarray) -> None:
    x = images.astype("f4")
    x[3, 400, 502] = np.nan
    with pytest.raises(DataError, match="finite"):
        CellPCA(4, cell_shape=12, shared=True, memory_budget=38 * 10**6, missing_value=None).fit(x)

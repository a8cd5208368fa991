"""Samples that are appended to a compressed store of large samples are encoded by tiles."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from skimage.metrics import structural_similarity

import dpca
from dpca import CellPCA
from dpca.engine.folds.plan import TASK_OVERHEAD, PlanError
from dpca.jobs import append_store, compress
from dpca.jobs.base import shards
from dpca.jobs.base.stages import NOTHING
from dpca.jobs.compressed.encode_tiles import MeasureJob, _opened
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.jobs.plans import shard_plan
from dpca.jobs.scores.settings import CompressionSettings
from dpca.report.record import read_report
from dpca.representation.compressed.compressed import TiledCompressed
from dpca.storage import DataError, Stack, open_stack, verify
from dpca.storage.run import Run
from tests.helpers.interrupted import interrupt_at
from tests.helpers.pictures import leave_pictures_empty
from tests.helpers.traced import traced_peak
from tests.jobs.compressed.test_append import tree
from tests.jobs.compressed.test_encode_tiles import FORMAT

SHAPE, ENDS = (47, 53), (5, 21, 24)


def large_from_few_values(patch: pytest.MonkeyPatch, values: int) -> None:
    """Divide samples of a kilobyte into tiles of this many values, and draw nothing."""
    patch.setattr(shard_plan, "LARGE_SAMPLE", 2**10)
    patch.setattr(shard_plan, "_TILE_VALUES", [values])
    leave_pictures_empty(patch.setattr)


@pytest.fixture(autouse=True)
def _tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from_few_values(monkeypatch, 600)


def film(n: int, dtype: str = "u1", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Waves that move slowly, with little noise."""
    rng = np.random.default_rng(1)
    axes = np.meshgrid(np.linspace(0, 2, n), *(np.linspace(0, 5, s) for s in shape), indexing="ij", sparse=True)
    values = np.sin(sum(axes)) + np.cos(2 * axes[1] - axes[0]) + 0.01 * rng.normal(size=(n, *shape))
    return (40 * values + 128).clip(0, 255).astype(dtype)


def stored(folder: Path, name: str, values: np.ndarray, chunks: tuple[int, ...] = (4, 20, 60)) -> Stack:
    zarr.create_array(str(folder / f"{name}.zarr"), data=values, chunks=chunks)
    return open_stack(folder / f"{name}.zarr", data_range=(0, 255))


def made(folder: Path, first: Stack, goal: dict[str, float], components: int = 6) -> Path:
    model = CellPCA(components, cell_shape=6, shared=True, random_state=0)
    compress(first, folder / "out.zarr", CompressionSettings(model, goal=goal))
    return folder / "out.zarr"


def made_and_appended(folder: Path, shape: tuple[int, ...], first: int, last: int, values: int) -> Path:
    """Return a store with tiles of this many values, and samples that were appended after the ``first``."""
    frames, chunks = film(last, "u1", shape), (1, 200, 600)
    with pytest.MonkeyPatch.context() as patch:
        large_from_few_values(patch, values)
        path = made(folder, stored(folder, "first", frames[:first], chunks), {"psnr": 34.0})
        append_store(path, stored(folder, "more", frames[first:], chunks), drift="accept")
    return path


@pytest.mark.parametrize(
    ("goal", "dtype"),
    [({"psnr": 36.0}, "u1"), ({"ssim": 0.95}, "u1"), ({"max_error": 1.0}, "u1"), ({"max_error": 0.01}, "f4")],
)
@pytest.mark.parametrize("shape", [SHAPE, (3, 5, 7, 30, 40)])
def test_samples_are_appended_in_groups_of_their_own(
    tmp_path: Path, goal: dict[str, float], dtype: str, shape: tuple[int, ...]
) -> None:
    ends = ENDS if len(shape) == len(SHAPE) else shape[:3]
    shape = shape if len(shape) == len(SHAPE) else shape[3:]
    x = film(ends[-1], dtype, shape)
    path = made(tmp_path, stored(tmp_path, "first", x[: ends[0]]), goal)
    assert isinstance(dpca.open_compressed(path), TiledCompressed)
    for start, stop in itertools.pairwise(ends):
        before = dpca.open_compressed(path)[...]
        done = append_store(path, stored(tmp_path, f"{start}", x[start:stop]), drift="accept")
        assert done.samples == stop - start
        assert (dpca.open_compressed(path)[:start] == before).all()
        assert append_store(path, open_stack(tmp_path / f"{start}.zarr")).cost is NOTHING
    store = dpca.open_compressed(path)
    assert store.facts["breaks"] == list(ends[:-1])
    y = store[...]
    mse = ((x.astype(float) - y) ** 2).mean(axis=(1, 2)) / 255**2
    np.testing.assert_allclose(store.quality["mse"], mse, rtol=1e-4, atol=1e-12)
    ssim = [structural_similarity(a, b, data_range=255) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(store.quality["ssim"], ssim, atol=1e-5)
    if "max_error" in goal:
        assert np.abs(x.astype(float) - y).max() <= goal["max_error"]
        assert store.quality["max_error"].max() <= goal["max_error"]
    assert verify(path) == []
    assert verify_quality(str(path), stored(tmp_path, "all", x)) == []
    for index in ((slice(2, ends[-1], 2), slice(3, 29)), ([ends[-1] - 1, 0, ends[0]], 7), -1):
        np.testing.assert_array_equal(store[index], y[index])
    np.testing.assert_array_equal(store.dask().compute(), y)
    np.testing.assert_array_equal(zarr.open_array(f"dpca::{path}", mode="r")[...], y)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.S):
        exec(code, names)
    np.testing.assert_allclose(names["read_tiled"](str(path)).astype(float), y, atol=1 if dtype == "u1" else 1e-4)


def test_waves_of_tiles_are_appended(tmp_path: Path) -> None:
    """The first samples fill no run of waves with their tiles."""
    x = film(3 * 17)[::3]
    path = made(tmp_path, stored(tmp_path, "first", x[:7]), {"psnr": 40.0})
    assert dpca.open_compressed(path).facts["waves"]
    append_store(path, stored(tmp_path, "more", x[7:]), drift="accept")
    y = dpca.open_compressed(path)[...]
    assert -10 * np.log10(((x.astype(float) - y) ** 2).mean(axis=(1, 2)) / 255**2).min() > 38
    assert verify_quality(str(path), stored(tmp_path, "all", x)) == []


@pytest.mark.parametrize("n_done", range(5))
def test_an_interruption_leaves_the_old_store_and_the_next_run_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_done: int
) -> None:
    x = film(12)
    store = made(tmp_path, stored(tmp_path, "first", x[:7]), {"psnr": 36.0})
    more, calm = stored(tmp_path, "more", x[7:]), tmp_path / "calm"
    calm.mkdir()
    shutil.copytree(store, calm / "out.zarr")
    shutil.copytree(tmp_path / "out.report", calm / "out.report")
    append_store(calm / "out.zarr", more, drift="accept", run=Run(threads=1))
    files, left = tree(store), iter([True] * n_done + [False] * 100)
    with monkeypatch.context() as patch:
        interrupt_at(patch, lambda unit: next(left))
        with pytest.raises(KeyboardInterrupt):
            append_store(store, more, drift="accept", run=Run(threads=1))
    assert tree(store) == files
    append_store(store, more, drift="accept", run=Run(threads=1))
    assert tree(store) == tree(calm / "out.zarr")


def test_other_samples_are_refused_or_all_are_fitted_again(tmp_path: Path) -> None:
    x, rng = film(6), np.random.default_rng(0)
    first = stored(tmp_path, "first", x)
    path = made(tmp_path, first, {"psnr": 36.0}, 36)
    files = tree(path)
    other = stored(tmp_path, "other", rng.integers(0, 255, (2, *SHAPE), dtype=np.uint8))
    with pytest.raises(DataError, match="psnr"):
        append_store(path, other)
    with pytest.raises(DataError, match="shape"):
        append_store(path, stored(tmp_path, "narrow", x[:, :, 1:]))
    with pytest.raises(PlanError, match="MB"):
        append_store(path, other, run=Run(memory=10**6))
    assert tree(path) == files
    assert append_store(path, other, drift="refit", original=first).refitted
    store = dpca.open_compressed(path)
    assert isinstance(store, TiledCompressed)
    assert "breaks" not in store.facts
    both = stored(tmp_path, "both", np.concatenate([x, other.samples[...]]))
    assert verify(path) == []
    assert verify_quality(str(path), both) == []
    assert -10 * np.log10(store.quality["mse"].mean()) >= 36
    report = read_report(tmp_path / "out.report")
    assert report is not None
    assert report["samples"] == len(x) + 2


def test_peaks_are_at_most_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second pass; the first one is that of `EncodeJob`."""
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [2**15])
    x = film(6, "u1", (300, 320))
    path = made(tmp_path, stored(tmp_path, "first", x[:2], (1, 100, 160)), {"max_error": 2.0})
    measured: list[tuple[int, int]] = []
    write = shards.write_shards

    def traced(job: Any, units: Any) -> Any:
        if not isinstance(job, MeasureJob):
            return write(job, units)
        store = _opened(job.store, job.fingerprint, job.attempt)
        planned = job.task_bytes(store, store.tiles, promised=True)
        peak, found = traced_peak(lambda: None, lambda _: write(job, units), planned)
        measured.append((peak, planned - TASK_OVERHEAD))
        return found

    monkeypatch.setattr(shards, "write_shards", traced)
    append_store(path, stored(tmp_path, "more", x[2:], (1, 100, 160)), drift="accept", run=Run(threads=1))
    assert measured
    assert all(peak <= planned for peak, planned in measured), measured

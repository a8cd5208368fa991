"""Compressed stores of samples that follow each other, and of samples for which components do not pay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpca
from dpca import CellPCA, analysis
from dpca.jobs import append_store
from dpca.storage import DataError, verify
from dpca.storage.disk import folder_bytes
from dpca.storage.survey import ReadOptions
from tests.jobs.compressed.test_encode import encoded, read_as_described, stack_of

N = 118  # no whole number of runs, and seven of them, of which trials take some


def drifting(n: int) -> np.ndarray:
    """Maps (n, 24, 20) of slow waves that travel, float32."""
    t, y, x = np.meshgrid(np.arange(n), np.arange(24), np.arange(20), indexing="ij")
    waves = [a * np.sin(y / b + x / c - t / d) for a, b, c, d in ((3, 4, 7, 9), (2, -3, 5, 14), (1, 2, 3, 30))]
    return np.sum(waves, axis=0, dtype=np.float32)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("film")
    CellPCA(12, cell_shape=8, shared=True).fit(
        stack_of(folder, drifting(N), reading=ReadOptions(data_range=(-6, 6)))
    ).save(folder / "model.zarr")
    return folder


def test_samples_that_follow_each_other_are_stored_as_waves(film: Path, tmp_path: Path) -> None:
    store = encoded(film, tmp_path / "out.zarr", max_error=0.01)
    assert store.facts["waves"]
    whole = store[...]
    assert np.abs(whole.astype(float) - drifting(N)).max() <= 0.01
    assert (np.abs(read_as_described(tmp_path / "out.zarr") - whole) <= np.spacing(np.abs(whole))).all()
    for index in (3, -1, slice(14, 35), [69, 2, 33], (slice(None, None, 17), slice(5, 9), 11)):
        np.testing.assert_array_equal(store[index], whole[index])
    assert verify(tmp_path / "out.zarr") == []


def test_waves_reach_other_goals_in_fewer_bytes(film: Path, tmp_path: Path) -> None:
    store = encoded(film, tmp_path / "out.zarr", psnr=45.0)
    assert store.facts["waves"]
    assert 44.5 < -10 * np.log10(np.square((store[...] - drifting(N)) / 12).mean()) < 46
    shuffled = np.random.default_rng(0).permutation(drifting(N))
    stack_of(tmp_path, shuffled, reading=ReadOptions(data_range=(-6, 6)))
    (tmp_path / "model.zarr").symlink_to(film / "model.zarr")
    other = encoded(tmp_path, tmp_path / "shuffled.zarr", psnr=45.0)
    assert not other.facts["waves"]
    assert folder_bytes(tmp_path / "out.zarr" / "codes") < folder_bytes(tmp_path / "shuffled.zarr" / "codes")


def test_where_components_do_not_pay_everything_is_residual(tmp_path: Path) -> None:
    # Few samples, each a smooth surface of its own.
    rng = np.random.default_rng(0)
    values = rng.normal(0, 4, (6, 40, 36)).cumsum(axis=1).cumsum(axis=2).astype(np.int16)
    stack = stack_of(tmp_path, values, reading=ReadOptions(data_range=(-(2**15), 2**15 - 1)))
    CellPCA(2, cell_shape=10).fit(stack).save(tmp_path / "model.zarr")
    store = encoded(tmp_path, tmp_path / "out.zarr", max_error=0.5)
    assert store.facts["differences"]
    np.testing.assert_array_equal(store[...], values)
    np.testing.assert_array_equal(store[2:4, 7:31, 35], values[2:4, 7:31, 35])
    np.testing.assert_array_equal(read_as_described(tmp_path / "out.zarr"), values)
    np.testing.assert_array_equal(dpca.open_compressed(tmp_path / "out.zarr", level=1)[...], values)
    with pytest.raises(DataError, match="residuals"):
        analysis.mean(store)


def test_what_moves_is_predicted_from_its_neighbors_in_space_and_time(tmp_path: Path) -> None:
    t, y, x = np.meshgrid(np.arange(N), np.arange(40), np.arange(36), indexing="ij")
    values = np.exp(-((y - 3 - 0.45 * t) ** 2 + (x - 18 - 9 * np.sin(t / 9)) ** 2) / 20).astype(np.float32)
    stack = stack_of(tmp_path, values, reading=ReadOptions(data_range=(0, 1)))
    CellPCA(8, cell_shape=8, shared=True).fit(stack).save(tmp_path / "model.zarr")
    store = encoded(tmp_path, tmp_path / "out.zarr", max_error=0.01)
    assert store.facts["interpolated"] == [0, 1, 2]
    whole = store[...]
    assert np.abs(whole.astype(float) - values).max() <= 0.01
    assert (np.abs(read_as_described(tmp_path / "out.zarr") - whole) <= np.spacing(np.abs(whole))).all()
    np.testing.assert_array_equal(store[[69, 2], 7:31, 35], whole[[69, 2], 7:31, 35])
    assert verify(tmp_path / "out.zarr") == []
    with pytest.raises(DataError, match="interpolates"):
        append_store(tmp_path / "out.zarr", stack)

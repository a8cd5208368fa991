"""A streaming PCA comes back from disk as it was, or says in a sentence why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpca import CellPCA, StreamingPCA
from dpca.storage.errors import StoreError
from tests.helpers.resealing import edit_facts


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (80, 6, 7), dtype=np.uint8)


@pytest.mark.parametrize("method", ["incremental-svd", "block-power"])
def test_a_model_comes_back(samples: np.ndarray, tmp_path: Path, method: str) -> None:
    model = StreamingPCA(3, method=method, random_state=0).fit(samples)
    model.save(tmp_path / "m.zarr")
    loaded = StreamingPCA.load(tmp_path / "m.zarr")
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert (loaded.total_variance_, loaded.n_samples_seen_, loaded.sample_shape_) == (
        model.total_variance_,
        80,
        (6, 7),
    )
    np.testing.assert_equal(loaded.captured_bound_, model.captured_bound_)
    np.testing.assert_array_equal(loaded.transform(samples), model.transform(samples))
    assert loaded.method == method


def test_saving_twice_and_over_something_else(samples: np.ndarray, tmp_path: Path) -> None:
    model = StreamingPCA(3).fit(samples)
    model.save(tmp_path / "m.zarr")
    model.save(tmp_path / "m.zarr")
    with pytest.raises(StoreError):
        StreamingPCA(2).fit(samples).save(tmp_path / "m.zarr")
    StreamingPCA(2).fit(samples).save(tmp_path / "m.zarr", overwrite=True)
    assert StreamingPCA.load(tmp_path / "m.zarr").n_components_ == 2


def test_what_is_no_such_model_is_refused(samples: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unreadable"):
        StreamingPCA.load(tmp_path / "nothing.zarr")
    CellPCA(2, cell_shape=3).fit(samples).save(tmp_path / "cells.zarr")
    with pytest.raises(StoreError, match="cell-pca.*streaming-pca"):
        StreamingPCA.load(tmp_path / "cells.zarr")
    StreamingPCA(3).fit(samples).save(tmp_path / "m.zarr")
    edit_facts(tmp_path / "m.zarr", lambda facts: facts.update(n_components=4))
    with pytest.raises(StoreError, match="damaged"):
        StreamingPCA.load(tmp_path / "m.zarr")
    edit_facts(tmp_path / "m.zarr", lambda facts: facts.update(version=99))
    with pytest.raises(StoreError, match="99"):
        StreamingPCA.load(tmp_path / "m.zarr")

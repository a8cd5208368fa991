"""A PCA comes back from disk as it was, or says in a sentence why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpca import PCA, StreamingPCA
from storage.errors import StoreError
from tests.resealing import edit_facts


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (80, 6, 7), dtype=np.uint8)


@pytest.mark.parametrize("options", [{"n_least": 2}, {"solver": "randomized", "tol": 0.9}, {"solver": "dual"}])
def test_a_model_comes_back(samples: np.ndarray, tmp_path: Path, options: dict[str, object]) -> None:
    model = PCA(np.int64(3), random_state=0, **options).fit(samples)
    model.save(tmp_path / "m.zarr")
    loaded = PCA.load(tmp_path / "m.zarr")
    arrays = {name for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    assert {"components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"} <= arrays
    assert arrays == {name for name, value in vars(loaded).items() if isinstance(value, np.ndarray)}
    for name in arrays:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    for name in ("total_variance_", "captured_bound_", "n_samples_seen_", "sample_shape_", "solver_", "solver_reason_"):
        assert getattr(loaded, name) == getattr(model, name)
    assert loaded.n_passes_ == model.n_passes_
    assert {**loaded.get_params(), "random_state": 0} == model.get_params()
    np.testing.assert_array_equal(loaded.score_samples(samples), model.score_samples(samples))


def test_what_is_no_such_model_is_refused(samples: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no model"):
        PCA.load(tmp_path / "nothing.zarr")
    StreamingPCA(2).fit(samples).save(tmp_path / "s.zarr")
    with pytest.raises(StoreError, match="streaming-pca store, not a model of kind pca"):
        PCA.load(tmp_path / "s.zarr")
    PCA(3).fit(samples).save(tmp_path / "m.zarr")
    for name, value in (("n_components", 4), ("kept", ["mean"]), ("n_passes", "two")):
        PCA(3).fit(samples).save(tmp_path / "m.zarr", overwrite=True)
        edit_facts(tmp_path / "m.zarr", lambda facts, name=name, value=value: facts.update({name: value}))
        with pytest.raises(StoreError, match="damaged"):
            PCA.load(tmp_path / "m.zarr")

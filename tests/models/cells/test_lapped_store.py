"""Stored cell PCA with an overlap: it loads completely, and is never read as one without overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import CellPCA
from dpca.models.base.store import load_any, model_fingerprint, stored_basis
from dpca.partition import LappedGrid
from dpca.storage import StoreError
from dpca.storage.arrays.reading import open_group, root_facts
from tests.helpers.resealing import edit_facts


def samples(shape: tuple[int, ...] = (20, 16, 18, 3), dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    CellPCA(3, cell_shape=8, overlap=3).fit(samples()).save(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


@pytest.mark.parametrize(
    ("shape", "cell", "k", "overlap", "dtype"),
    [
        ((20, 16, 18, 3), 8, 3, 3, np.uint8),
        ((20, 30), 7, 2, 3, np.float32),
        ((20, 6, 7, 5), 4, None, 2, np.float64),
        ((12, 8, 9, 6, 2), (4, 4, 6), 4, 3, np.uint16),
    ],
)
def test_what_is_saved_is_loaded(
    shape: tuple[int, ...], cell: Any, k: int | None, overlap: int, dtype: Any, tmp_path: Path
) -> None:
    x = samples(shape, dtype)
    model = CellPCA(k, cell_shape=cell, overlap=overlap).fit(x)
    model.save(tmp_path / "model.zarr")
    again = CellPCA.load(tmp_path / "model.zarr")
    for name in ("components_", "mean_", "explained_variance_", "total_variance_", "grid_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert isinstance(again.grid_, LappedGrid)
    np.testing.assert_array_equal(again.ranks_, model.ranks_)
    scores = model.transform(x)
    np.testing.assert_array_equal(again.transform(x), scores)
    np.testing.assert_array_equal(again.inverse_transform(scores), model.inverse_transform(scores))
    np.testing.assert_array_equal(again.fit(x).components_, model.components_)
    basis = stored_basis(str(tmp_path / "model.zarr"), model_fingerprint(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(basis.encode(x), scores)
    assert scores.shape[1:] == basis.score_shape
    assert isinstance(load_any(tmp_path / "model.zarr"), CellPCA)


def test_other_overlaps_have_other_fingerprints(stored: Path, tmp_path: Path) -> None:
    constant = np.zeros((20, 16, 18, 3), np.uint8)  # its arrays are the same with any overlap
    for overlap in (0, 2, 3):
        CellPCA(3, cell_shape=8, overlap=overlap).fit(constant).save(tmp_path / f"{overlap}.zarr")
    assert len({model_fingerprint(tmp_path / f"{overlap}.zarr") for overlap in (0, 2, 3)}) == 3


def test_a_program_without_overlaps_refuses_it(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("store_version", "weighted_version"):
        monkeypatch.setattr(CellPCA, name, 1)
    with pytest.raises(StoreError, match="version.2"):
        CellPCA.load(stored)


def test_one_without_stays_of_the_version_that_such_a_program_reads(tmp_path: Path) -> None:
    CellPCA(3, cell_shape=8).fit(samples()).save(tmp_path / "model.zarr")
    facts = root_facts(open_group(tmp_path / "model.zarr"))
    assert facts["version"] == 1
    assert "overlap" not in facts


@pytest.mark.parametrize("overlap", [None, 1, -3, 99, "much"])
def test_an_overlap_that_is_none(overlap: Any, stored: Path) -> None:
    edit_facts(stored, lambda facts: facts.update(overlap=overlap))
    with pytest.raises(StoreError, match="damaged"):
        CellPCA.load(stored)

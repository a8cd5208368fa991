"""A stored model is read back as what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.models.base.store import load_any, model_fingerprint, stored_basis
from dpca.partition import Whole
from dpca.representation.linear import LinearRepresentation
from dpca.storage.arrays.arrays import create_root
from dpca.storage.errors import StoreError


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 8, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", [BandPCA, CellPCA, PCA, StreamingPCA])
def test_a_model_of_any_kind(kind: type, samples: np.ndarray, tmp_path: Path) -> None:
    parts = {CellPCA: {"cell_shape": 4}, BandPCA: {"band_size": 50}}
    model = kind(2, **parts.get(kind, {})).fit(samples)
    model.save(tmp_path / "m.zarr")
    assert type(load_any(tmp_path / "m.zarr")) is kind
    basis = stored_basis(str(tmp_path / "m.zarr"), model_fingerprint(tmp_path / "m.zarr"))
    scores = basis.encode(samples)
    np.testing.assert_array_equal(scores, model.transform(samples))
    assert scores.shape[1:] == basis.score_shape
    assert basis.sample_shape == (8, 6, 3)
    assert basis.n_spatial(("y", "x", "channel")) == 2
    assert len(basis.score_axes(("y", "x", "channel"))) == len(basis.score_shape)


def test_the_channels_of_a_whole_sample_are_no_axis_of_space() -> None:
    basis = LinearRepresentation(Whole((2, 3, 4)), np.zeros(24), np.zeros((1, 24)))
    assert basis.n_spatial(("z", "y", "x")) == 3
    assert basis.n_spatial(("y", "x", "channel")) == 2


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    create_root(tmp_path / "stack.zarr", kind="stack", fingerprint="f")
    zarr.create_group(str(tmp_path / "theirs.zarr"))
    for name, sentence in (
        ("stack.zarr", "is a stack store, not a model"),
        ("theirs.zarr", "is a foreign store, not a model"),
        ("gone.zarr", "there is no model at"),
    ):
        for read in (load_any, model_fingerprint):
            with pytest.raises(StoreError, match=sentence):
                read(tmp_path / name)

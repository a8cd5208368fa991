"""A stored model is read back as what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca.models.store import load_any, model_fingerprint
from dpca.representation.linear_basis import LinearBasis
from storage.arrays import create_root
from storage.errors import StoreError


def test_the_channels_of_a_whole_sample_are_no_axis_of_space() -> None:
    basis = LinearBasis(np.zeros(24), np.zeros((1, 24)), (2, 3, 4))
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

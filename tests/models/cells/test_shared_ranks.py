"""Ranks of shared components: those of one cell of each shape hold for all cells of the shape."""

from __future__ import annotations

import numpy as np
import pytest

from dpca import CellPCA


@pytest.mark.parametrize("overlap", [0, 4])
def test_ranks_are_those_counted_in_all_cells(overlap: int) -> None:
    values = np.random.default_rng(0).normal(size=(60, 30, 37, 2)).astype(np.float32)
    model = CellPCA(target_psnr=20.0, cell_shape=8, overlap=overlap, shared=True).fit(values)
    assert len(np.unique(model.ranks_)) > 1
    np.testing.assert_array_equal(model.ranks_.ravel(), model.basis_.ranks)

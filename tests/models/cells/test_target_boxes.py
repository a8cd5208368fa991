"""Targets of large samples, which are measured box by box: the choice of whole samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import CellPCA
from dpca.models.cells import target_boxes, targets
from tests.conftest import smooth_images


@pytest.mark.parametrize(
    "target",
    [
        {"target_ssim": 0.93},
        {"target_ssim": 0.9, "validation_fraction": 0.3},
        {"target_psnr": 29.0, "validation_fraction": 0.3},
        {"target_mse": 0.002, "validation_fraction": 0.4, "shared": True},
    ],
    ids=lambda target: "-".join(target),
)
@pytest.mark.parametrize(("overlap", "shape"), [(0, (41, 50)), (4, (41, 50)), (2, (33, 40, 3))])
def test_the_choice_is_that_of_whole_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any], overlap: int, shape: tuple[int, ...]
) -> None:
    x = smooth_images(15, shape)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(3, 20, 17, *shape[2:]))
    options: Any = {"cell_shape": 8, "overlap": overlap, "random_state": 0, **target}
    other = CellPCA(**options).fit(path)
    monkeypatch.setattr(target_boxes, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(target_boxes, "_BOX_BYTES", 2**17)
    for name in ("_all_found", "_blocks"):
        monkeypatch.setattr(targets, name, lambda *args: pytest.fail("a whole sample"))
    model = CellPCA(**options).fit(path)
    assert model.target_reached_ == pytest.approx(other.target_reached_, rel=1e-6)
    assert model.target_standard_error_ == pytest.approx(other.target_standard_error_, rel=1e-4)
    np.testing.assert_array_equal(model.ranks_, other.ranks_)

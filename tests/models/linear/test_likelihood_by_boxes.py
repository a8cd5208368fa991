"""The log-likelihood of samples that no task holds whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import pytest
import zarr

from dpca import PCA, BandPCA, CellPCA
from tests.helpers.patterned import patterned

SHAPE = (40, 90)


@pytest.mark.parametrize(
    "model",
    [
        CellPCA(3, cell_shape=(7, 16)),
        CellPCA(threshold=0.8, cell_shape=8, overlap=4),
        CellPCA(2, cell_shape=8, shared=True),
        BandPCA(3, band_size=130, mapping="random", random_state=0),
        PCA(3),
        PCA(3, whiten=True),
    ],
    ids=lambda model: f"{type(model).__name__}-{model.get_params().get('overlap')}-{model.get_params().get('shared')}",
)
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_it_is_that_of_samples_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any, dtype: str
) -> None:
    x = patterned(12, SHAPE, dtype, 2)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x[8:], chunks=(1, 16, 40))
    model.fit(x[:8])
    expected = model.score(x[8:])
    monkeypatch.setattr("dpca.representation.by_blocks.LARGE_SAMPLE", 0)
    monkeypatch.setattr("dpca.representation.by_blocks._TASK_BYTES", 2**16)
    whole = pytest.fail
    monkeypatch.setattr("dpca.models.base.each_sample.map_samples", lambda *args: whole("a whole sample"))
    for given in (str(tmp_path / "x.zarr"), da.from_array(x[8:], chunks=(3, 10, 30))):
        assert model.score(given) == pytest.approx(expected, rel=1e-5)

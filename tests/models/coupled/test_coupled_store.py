"""MCA and CCA in stores: a loaded analysis yields the same patterns, scores, fractions and fields as the saved one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dpca import CCA, MCA
from dpca.models.base.store import load_any
from dpca.storage import DataError, StoreError, verify
from tests.helpers.resealing import edit_facts
from tests.models.eof.sea import SST

N = len(SST)
#: Pressures half a month later, with other latitudes under the same name.
PRESSURE = xr.DataArray(
    np.random.default_rng(7).normal(size=(N, 5, 4)) + SST.mean(("lat", "lon")).values[:, None, None],
    {
        "time": pd.date_range("1990-01-15", periods=N, freq="MS"),
        "lat": ("lat", np.linspace(-20, 20, 5), {"units": "degrees_north"}),
        "level": [1000.0, 850, 500, 200],
        "depth": 3.0,
    },
    ("time", "lat", "level"),
    name="pressure",
    attrs={"units": "hPa"},
)


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, xr.DataArray):
        xr.testing.assert_identical(found, expected)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (MCA(3, weights=("coslat", None), climatology="season", detrend=True), (SST, PRESSURE)),
        (MCA(2, weights=(None, np.arange(1.0, 5)), solver="dual"), (SST.values, PRESSURE)),
        (CCA(2, n_pca_modes=(5, 0.9), weights="coslat", standardize=(True, False)), (SST, PRESSURE.chunk(time=9))),
        (MCA(3, hilbert=True), (SST, PRESSURE.values)),
        (MCA(2, n_pca_modes=4, solver="streaming", random_state=0), (SST.values, PRESSURE.values)),
    ],
    ids=["mca", "weights", "cca", "hilbert", "streaming"],
)
def test_a_loaded_analysis_is_the_saved_one(model: Any, fields: Any, tmp_path: Path) -> None:
    model.fit(*fields)
    scores = model.scores()
    model.save(tmp_path / "modes.zarr")
    assert not verify(tmp_path / "modes.zarr")
    loaded = load_any(tmp_path / "modes.zarr")
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model) or isinstance(model.weights, tuple | np.ndarray) or model.random_state == 0
    same(loaded.scores(), scores)
    same(loaded.patterns(), model.patterns())
    same(loaded.inverse_transform(*scores), model.inverse_transform(*scores))
    for name in ("singular_values_", "squared_covariance_fraction_", "correlation_", "explained_variance_ratio_"):
        same(getattr(loaded, name), getattr(model, name))
    assert loaded.pca_variance_ratio_ == model.pca_variance_ratio_
    assert loaded.total_squared_covariance_ == model.total_squared_covariance_
    same(loaded.rotate("promax").patterns(), model.rotate("promax").patterns())
    if not model.hilbert:
        same(loaded.transform(*fields), model.transform(*fields))
    loaded.save(tmp_path / "again.zarr")
    same(load_any(tmp_path / "again.zarr").patterns(), model.patterns())


def test_a_store_without_scores_says_so(tmp_path: Path) -> None:
    model = MCA(2, solver="covariance").fit(SST, PRESSURE)
    model.save(tmp_path / "modes.zarr")
    with pytest.raises(DataError, match="transform"):
        MCA.load(tmp_path / "modes.zarr").scores()
    same(MCA.load(tmp_path / "modes.zarr").transform(SST), model.transform(SST))
    with pytest.raises(StoreError, match="mca"):
        CCA.load(tmp_path / "modes.zarr")


def test_a_store_with_other_facts_is_rejected(tmp_path: Path) -> None:
    MCA(2).fit(SST, PRESSURE).save(tmp_path / "modes.zarr")
    edit_facts(tmp_path / "modes.zarr", lambda facts: facts["y_field"].update(features=19))
    with pytest.raises(StoreError, match="damaged"):
        MCA.load(tmp_path / "modes.zarr")

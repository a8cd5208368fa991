"""EOF in stores: a loaded analysis yields the same maps, PC time series, scores and fields as the saved one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from dpca import EOF
from dpca.jobs.scores.transform import transform_store
from dpca.models.base.store import load_any
from dpca.storage import DataError, StoreError, open_stack, verify
from tests.helpers.resealing import edit_facts

SHAPE = (36, 4, 5)


def made(seed: int = 0) -> xr.DataArray:
    """Temperatures of three years, NaN over land, some missing at sea."""
    rng = np.random.default_rng(seed)
    values = 280 + rng.normal(size=(SHAPE[0], 3)) @ (3 * rng.normal(size=(3, 20))) + 0.1 * rng.normal(size=(36, 20))
    values = values.reshape(SHAPE)
    values[:, 1:3, 2] = np.nan
    values[seed + 3 : seed + 5, 0, 0] = np.nan
    coords = {
        "time": pd.date_range("1990-01-01", periods=SHAPE[0], freq="MS"),
        "year": ("time", 1990 + np.arange(SHAPE[0]) // 12),
        "lat": ("lat", np.linspace(-60, 60, 4), {"units": "degrees_north"}),
        "lon": np.arange(0.0, 360, 72),
        "depth": 5.0,
    }
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name="sst", attrs={"units": "K"})


SST, OTHER = made(), made(1)
WEIGHTS = xr.DataArray(np.arange(1.0, 5), {"lat": SST.lat}, ("lat",))


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, xr.DataArray):
        xr.testing.assert_identical(found, expected)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("options", "field", "other"),
    [
        ({"weights": "coslat", "gaps": "iterate", "detrend": True, "standardize": True}, SST, OTHER),
        ({"weights": WEIGHTS, "gaps": "interpolate", "climatology": "season", "solver": "auto"}, SST, OTHER),
        ({"climatology": "month", "gaps": "interpolate", "solver": "dual"}, SST.chunk(time=10), OTHER),
        ({"weights": np.arange(5.0)}, SST.values[6:], OTHER.values[6:]),
    ],
)
def test_it_comes_back_as_it_was(options: dict[str, Any], field: Any, other: Any, tmp_path: Path) -> None:
    eof = EOF(3, random_state=0, **options).fit(field)
    eof.pcs()
    eof.save(tmp_path / "eof.zarr")
    assert verify(tmp_path / "eof.zarr") == []
    again = load_any(tmp_path / "eof.zarr")
    assert type(again) is EOF
    for found in (again, EOF.load(tmp_path / "eof.zarr")):
        for scaling in (0, 1, 2):
            same(found.eofs(scaling), eof.eofs(scaling))
            same(found.pcs(scaling), eof.pcs(scaling))
        same(found.project(other), eof.project(other))
        same(found.reconstruct(), eof.reconstruct())
        same(found.reconstruct(eof.project(other), 2), eof.reconstruct(eof.project(other), 2))
        for ours, theirs in ((found.rotate(), eof.rotate()), (found.rotate("promax", 2), eof.rotate("promax", 2))):
            same(ours.eofs(), theirs.eofs())
            same(ours.pcs(), theirs.pcs())
        for n_eff in (True, False):
            for name in ("eigenvalue", "error", "n_eff", "separated"):
                same(getattr(found.north_test(n_eff=n_eff), name), getattr(eof.north_test(n_eff=n_eff), name))
        for name, value in vars(eof).items():
            if name.endswith("_") and name != "model_":
                same(getattr(found, name), value)
    # A loaded analysis can be saved and fitted again.
    again.save(tmp_path / "again.zarr")
    same(EOF.load(tmp_path / "again.zarr").reconstruct(), eof.reconstruct())
    np.testing.assert_allclose(
        again.set_params(random_state=0).fit(field).explained_variance_, eof.explained_variance_, rtol=1e-6
    )


def test_what_a_store_lacks_and_what_is_no_store_of_it(tmp_path: Path) -> None:
    path = tmp_path / "eof.zarr"
    eof = EOF(2, random_state=0, gaps="iterate").fit(SST)
    eof.save(path)
    again = EOF.load(path)
    with pytest.raises(DataError, match=r"pcs\(\)"):
        again.pcs()
    same(again.reconstruct(again.project(SST)), eof.reconstruct())
    with pytest.raises(DataError, match="'lat'"):
        again.project(OTHER.assign_coords(lat=OTHER.lat + 1))
    zarr.create_array(str(tmp_path / "x.zarr"), data=np.nan_to_num(SST.values))
    with pytest.raises(DataError, match="eof"):
        transform_store(open_stack(tmp_path / "x.zarr"), path, tmp_path / "scores.zarr")
    wrong = [("n_components", 3), ("n_samples", 7), ("n_samples_seen", 7), ("sample_shape", [4, 6]), ("kept", ["all"])]
    for i, (fact, value) in enumerate([*wrong, ("model", {"kind": "cell-pca"}), ("parameters", {"n_modes": 0})]):
        damaged = shutil.copytree(path, tmp_path / f"{i}.zarr")
        edit_facts(damaged, lambda facts, new={fact: value}: facts.update(new))
        with pytest.raises(StoreError, match="damaged"):
            EOF.load(damaged)

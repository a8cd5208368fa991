"""`EOF` with numbers that mark missing values: the results are those of the same field with NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dpca import EOF
from dpca.storage import DataError

N, SHAPE = 40, (5, 6)
RNG = np.random.default_rng(0)
VALUES = RNG.integers(-900, 900, (N, 30)) * 1.0
VALUES += np.outer(np.linspace(-2000, 2000, N), np.linspace(1, 2, 30)).round()
GAPPY = VALUES.reshape(N, *SHAPE).copy()
GAPPY[:, 2:4, 1] = np.nan  # land
CLOUDY = np.where(RNG.random(GAPPY.shape) < 0.1, np.nan, GAPPY)


def marked(x: np.ndarray, mark: float, dtype: str) -> np.ndarray:
    return np.where(np.isnan(x), mark, x).astype(dtype)


FORMS: dict[str, Any] = {
    "integers": (lambda x: marked(x, -9999, "int16"), -9999),
    "float32": (lambda x: marked(x, 1e20, "float32"), 1e20),
    "both": (lambda x: np.where(np.arange(N)[:, None, None] % 2, marked(x, 1e20, "float64"), x), 1e20),
    "infinite": (lambda x: np.where(np.isnan(x), np.where(np.arange(6) % 2, np.inf, -np.inf), x), "infinite"),
    "Dask": (lambda x: da.from_array(marked(x, -9999, "int16"), chunks=(7, 3, 6)), -9999),
    "DataArray": (lambda x: xr.DataArray(marked(x, -9999, "int16"), dims=("time", "lat", "lon")), -9999),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("gaps", ["drop", "interpolate", "iterate"])
@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_nan(form: str, gaps: str, tmp_path: Path) -> None:
    make, mark = FORMS[form]
    field = GAPPY if gaps == "drop" else CLOUDY
    how: dict[str, Any] = {"gaps": gaps, "solver": "auto", "random_state": 0}
    expected = EOF(2, **how).fit(field)
    found = EOF(2, missing_value=mark, **how).fit(make(field))
    tolerance = 1e-4 if form in ("integers", "float32", "Dask", "DataArray") else 1e-9
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=tolerance)
    np.testing.assert_array_equal(np.isnan(found.eofs()), np.isnan(expected.eofs()))
    np.testing.assert_allclose(np.asarray(found.eofs()), expected.eofs(), atol=10 * tolerance)
    found.save(tmp_path / "eof.zarr")
    scores = EOF.load(tmp_path / "eof.zarr").project(make(field))
    np.testing.assert_allclose(np.asarray(scores), np.asarray(found.pcs()), rtol=1e-5, atol=1e-2)


def test_the_mark_holds_for_each_of_several_variables() -> None:
    pair = {"a": GAPPY, "b": 2 * GAPPY[:, :3]}
    expected = EOF(2, solver="auto", random_state=0).fit(pair)
    found = EOF(2, solver="auto", random_state=0, missing_value=-9999).fit(
        {name: marked(x, -9999, "float64") for name, x in pair.items()}
    )
    for name in pair:
        np.testing.assert_allclose(found.eofs()[name], expected.eofs()[name], atol=1e-9)


def test_it_holds_for_stored_fields(tmp_path: Path) -> None:
    zarr.save(str(tmp_path / "x.zarr"), marked(GAPPY, -9999, "int16"))
    found = EOF(2, missing_value=-9999).fit(tmp_path / "x.zarr")
    assert found.n_places_ == 28


@pytest.mark.parametrize("wrong", ["huge", np.nan, [1, 2]])
def test_other_marks_are_rejected(wrong: Any) -> None:
    with pytest.raises(DataError, match="missing_value"):
        EOF(2, missing_value=wrong).fit(GAPPY)

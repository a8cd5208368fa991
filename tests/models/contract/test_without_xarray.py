"""Everything but arrays of xarray works where xarray is not installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from dpca.storage import ingest
from tests.test_house import FILES


@pytest.mark.long
def test_nothing_imports_it_by_itself() -> None:
    """Dask does, where it is installed; we only do inside functions that have been given an array of it."""
    for path in FILES.values():
        tree = ast.parse(path.read_text())
        names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert "xarray" not in names, path


@pytest.mark.long
def test_all_else_works_without_it(tmp_path: Path) -> None:
    field = xr.DataArray(np.random.default_rng(0).normal(size=(40, 8, 12)), dims=("time", "lat", "lon"))
    np.save(tmp_path / "x.npy", field.values)
    ingest(field.assign_coords(lat=np.arange(8)), tmp_path / "labelled.zarr")
    code = f"""
import sys
sys.modules["xarray"] = None  # importing it fails
import numpy as np
from dpca import PCA
from dpca.storage import ingest, DataError
ingest({str(tmp_path / "x.npy")!r}, {str(tmp_path / "s.zarr")!r})
for path in ("x.npy", "s.zarr", "labelled.zarr"):
    path = {str(tmp_path)!r} + "/" + path
    model = PCA(3).fit(path)
    model.transform(path).compute()
    model.save(path + ".model")
    model = PCA.load(path + ".model")
    assert model.transform(np.ones((2, 8, 12))).shape == (2, 3)
    try:
        model.to_xarray()
    except DataError as error:
        assert 'pip install "dask-dpca[xarray]"' in str(error), error
    else:
        raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""What users of xeofs and eofs write, and what they write here: the same numbers. Skipped without these libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpca import EOF
from dpca.plots.maps import mode_maps
from tests.models.eof.sea import SST

K = 4


def turned(theirs: Any, ours: Any, mode: str = "mode") -> Any:
    """Return results of another library with the signs and the order of dims of ours, where ours are not NaN."""
    theirs = theirs.rename({theirs.dims[theirs.dims.index(mode)]: "mode"}).transpose(*ours.dims)
    others = [dim for dim in ours.dims if dim != "mode"]
    signs = np.sign(np.nansum(theirs.values * ours.values, axis=tuple(ours.dims.index(dim) for dim in others)))
    shape = [len(signs) if dim == "mode" else 1 for dim in ours.dims]
    return theirs.values * signs.reshape(shape)


def close(theirs: Any, ours: Any, tolerance: float = 1e-6) -> None:
    values = turned(theirs, ours)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(ours.values))
    np.testing.assert_allclose(values, ours.values, atol=tolerance * float(np.nanmax(np.abs(ours.values))))


def test_the_quick_start_of_xeofs() -> None:
    xeofs = pytest.importorskip("xeofs")
    model = xeofs.single.EOF(n_modes=K, use_coslat=True)
    model.fit(SST, dim="time")
    rotator = xeofs.single.EOFRotator(n_modes=K, power=1)
    rotator.fit(model)

    eof = EOF(K, weights="coslat").fit(SST, dim="time")
    turning = eof.rotate()

    close(model.components(), eof.eofs())
    close(model.scores(), eof.pcs(), 1e-5)
    np.testing.assert_allclose(model.explained_variance_ratio(), eof.explained_variance_ratio_, rtol=1e-6)
    np.testing.assert_allclose(model.explained_variance(), eof.explained_variance_, rtol=1e-6)
    close(model.transform(SST.isel(time=slice(9))), eof.project(SST.isel(time=slice(9))), 1e-5)
    np.testing.assert_allclose(model.inverse_transform(model.scores()), eof.reconstruct(), rtol=1e-5)
    np.testing.assert_allclose(rotator.explained_variance(), turning.explained_variance_, rtol=1e-4)
    close(rotator.components(), turning.eofs(), 1e-3)


def test_the_examples_of_eofs() -> None:
    eofs = pytest.importorskip("eofs.xarray")
    weights = np.sqrt(np.cos(np.deg2rad(SST["lat"].values)).clip(0, 1))[..., np.newaxis]
    solver = eofs.Eof(SST, weights=weights)

    eof = EOF(K, weights="coslat").fit(SST)
    series = eof.pcs(scaling=1)

    close(solver.eofs(neofs=K), eof.eofs())
    close(solver.pcs(npcs=K, pcscaling=1), series, 1e-5)
    np.testing.assert_allclose(solver.eigenvalues(neigs=K), eof.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(solver.varianceFraction(neigs=K), eof.explained_variance_ratio_, rtol=1e-6)
    np.testing.assert_allclose(solver.northTest(neigs=K), eof.north_test(n_eff=False)["error"], rtol=1e-6)
    np.testing.assert_allclose(solver.totalAnomalyVariance(), eof.total_variance_, rtol=1e-6)
    close(solver.eofsAsCorrelation(neofs=K), xr.corr(SST, series, "time").transpose("mode", "lat", "lon"), 1e-5)
    close(solver.eofsAsCovariance(neofs=K), xr.cov(SST, series, "time").transpose("mode", "lat", "lon"), 1e-5)
    field = SST - SST.mean("time")
    close(solver.projectField(field.isel(time=slice(5)), neofs=K), eof.project(SST.isel(time=slice(5))), 1e-5)
    np.testing.assert_allclose(solver.reconstructedField(K), eof.reconstruct() - SST.mean("time"), atol=1e-4)
    assert mode_maps(eof.eofs(scaling=2), series).axes

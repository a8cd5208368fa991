"""What users of `xeofs.cross` write, and what they write here: the same numbers. Skipped without xeofs.

Components of principal component analysis come from its full decomposition here; its default one is randomized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpca import CCA, MCA
from tests.models.eof.sea import SST, made

OTHER = made(seed=1).isel(lat=slice(0, 5)).rename(lon="sector") + 0.3 * np.nan_to_num(SST.values[:, :5] - 280)
N = len(SST)


def theirs(name: str, n_modes: int, q: int | None) -> Any:
    """A model of xeofs, fitted."""
    pytest.importorskip("statsmodels")
    cross = pytest.importorskip("xeofs").cross
    common = {"use_pca": q is not None, "n_pca_modes": q or "all", "solver": "full", "use_coslat": [True, False]}
    model = getattr(cross, name)(n_modes, **common)
    for reduction in (model.pca1, model.pca2):
        reduction.solver_kwargs = {"solver": "full"}
    return model.fit(SST, OTHER, dim="time")


def turned(found: xr.DataArray, phases: np.ndarray, dims: Any) -> np.ndarray:
    values: np.ndarray = found.transpose(*dims).values
    return values * phases.reshape([-1 if dim == "mode" else 1 for dim in dims])


def close(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * np.nanmax(np.abs(expected)))


def compare(model: Any, ours: Any) -> np.ndarray:
    """Compare all results; return their signs or phases relative to ours."""
    found, maps = model.components()[0], ours.patterns()[0]
    products = np.nansum(found.transpose(*maps.dims).values.conj() * maps.values, axis=(1, 2))
    phases: np.ndarray = products / np.abs(products)
    for of_them, of_us in zip(model.components() + model.scores(), ours.patterns() + ours.scores(), strict=True):
        close(turned(of_them, phases, of_us.dims), of_us)
    close(model.data["squared_covariance"] ** 0.5, ours.singular_values_)
    close(model.squared_covariance_fraction(), ours.squared_covariance_fraction_)
    close(model.fraction_variance_X_explained_by_X(), ours.explained_variance_ratio_[0])
    close(model.fraction_variance_Y_explained_by_Y(), ours.explained_variance_ratio_[1])
    # They divide by standard deviations with the divisor n, but by n - 1 in the covariance.
    close(model.cross_correlation_coefficients() * (N - 1) / N, ours.correlation_)
    return phases


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("solver", ["covariance", "dual"])
@pytest.mark.parametrize("q", [None, 12])
def test_maximum_covariance_analysis_and_its_rotations(solver: str, q: int | None) -> None:
    model = theirs("MCA", 5, q)
    ours = MCA(5, weights=("coslat", None), n_pca_modes=q, solver=solver).fit(SST, OTHER)
    phases = compare(model, ours)
    close(model.covariance_fraction_CD95(), ours.covariance_fraction_)
    close(model.inverse_transform(*model.scores())[1], ours.inverse_transform(*ours.scores())[1])
    few = SST.isel(time=slice(9))
    close(turned(model.transform(few), phases, ("time", "mode")), ours.transform(few))
    close(turned(model.predict(few), phases, ("time", "mode")), ours.predict(few))
    for power in (1, 2, 4):
        rotator = pytest.importorskip("xeofs").cross.MCARotator(n_modes=4, power=power)
        rotator.fit(model)
        compare(rotator, ours.rotate("varimax" if power == 1 else "promax", 4, power=power))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("q", [None, 12])
def test_hilbert_analysis_and_its_rotations(q: int | None) -> None:
    model = theirs("HilbertMCA", 5, q)
    ours = MCA(5, weights=("coslat", None), n_pca_modes=q, hilbert=True).fit(SST, OTHER)
    compare(model, ours)
    for power in (1, 2):
        rotator = pytest.importorskip("xeofs").cross.HilbertMCARotator(n_modes=4, power=power)
        rotator.fit(model)
        compare(rotator, ours.rotate("varimax" if power == 1 else "promax", 4, power=power))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("solver", ["covariance", "dual"])
def test_canonical_correlation_analysis_and_its_rotations(solver: str) -> None:
    model = theirs("CCA", 4, 8)
    ours = CCA(4, weights=("coslat", None), n_pca_modes=8, solver=solver).fit(SST, OTHER)
    compare(model, ours)
    for power in (1, 3):
        rotator = pytest.importorskip("xeofs").cross.CPCCARotator(n_modes=3, power=power)
        rotator.fit(model)
        compare(rotator, ours.rotate("varimax" if power == 1 else "promax", 3, power=power))

"""Spectral POD of fields and of time functions, against scipy's densities and pyspod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

from dpca import PCA, timeseries
from dpca.engine.fold import plan_for
from dpca.storage import DataError
from tests.timeseries.field import SHAPE, waves

N = 400
FIELD = waves(N)
FULL = PCA(30).fit(FIELD)


@pytest.fixture(scope="module")
def exact() -> timeseries.SpectralModes:
    return timeseries.spod(FIELD, 3, 40)


def test_energies_add_up_to_the_spectrum_of_the_field(exact: timeseries.SpectralModes) -> None:
    flat = FIELD.reshape(N, -1)
    found = timeseries.spectrum(flat - flat.mean(axis=0), segment=40, detrend=False)
    np.testing.assert_allclose(exact.total, found.total)
    np.testing.assert_allclose(exact.frequencies, found.frequencies)
    assert (exact.n_blocks, exact.share, exact.modes.shape) == (19, 1.0, (21, 3, *SHAPE))
    # A wave of period 20 and one of 8 are the first modes there, and hold all but noise.
    for period, share in ((20, 0.99), (8, 0.98)):
        at = int(np.argmin(np.abs(exact.frequencies - 1 / period)))
        assert exact.energy[at, 0] > share * exact.total[at]


def test_time_functions_have_the_modes_of_the_field(exact: timeseries.SpectralModes) -> None:
    found = timeseries.spod(FULL.transform(FIELD), 3, 40, model=FULL)
    np.testing.assert_allclose(found.energy, exact.energy, rtol=1e-9)
    cosines = np.einsum("fkij,fkij->fk", found.modes.compute().conj(), exact.modes.compute())
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-9)
    few = PCA(4).fit(FIELD)
    part = timeseries.spod(few.transform(FIELD), 3, 40, model=few)
    assert 0 <= (exact.energy - part.energy).sum() / exact.total.sum() < 1 - part.share
    named = timeseries.spod(xarray.DataArray(FIELD, dims=("time", "lat", "lon")), 1, 40).to_xarray()
    assert named.dims == ("frequency", "mode", "lat", "lon")


@pytest.mark.parametrize("how", ["path", "dask"])
def test_stores_in_segments(
    how: str, tmp_path: Path, exact: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=FIELD, chunks=(50, 5, 6))
    x = str(tmp_path / "x.zarr") if how == "path" else da.from_array(FIELD, chunks=(50, 5, 6))
    monkeypatch.setattr("dpca.engine.plan.SEGMENT_BYTES", 5 * 40 * 30 * 8)
    monkeypatch.setattr("dpca.engine.plan._SHORT_TASK", 0)
    segments: list[int] = []

    def planned(*given: Any, **how: Any) -> Any:
        segments.append(len((plan := plan_for(*given, **how)).segments))
        return plan

    monkeypatch.setattr("dpca.engine.fold.plan_for", planned)
    for client in (None, cluster):
        found = timeseries.spod(x, 3, 40, oversampling=4, client=client, band=(0.02, 0.2))
        here = (exact.frequencies >= 0.02) & (exact.frequencies <= 0.2)
        np.testing.assert_allclose(found.frequencies, exact.frequencies[here])
        assert np.abs(found.energy - exact.energy[here]).sum() < 5e-3 * exact.energy[here].sum()
        assert segments[-1] > 2 or how == "dask"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"block": 300}, "blocks of 300 samples, each 150 after the last, are less than 2 of the 400: give shorter"),
        ({"block": 1}, "block is 1: give an integer of at least 2"),
        ({"overlap": 1}, "overlap is 1: give a share of the block"),
        ({"band": (0.51, 0.6)}, "no frequency of 0 to 0.5 in steps of 0.025 lies in the band from 0.51 to 0.6"),
        ({"center": "all"}, "center is 'all': give 'record', 'block' or None"),
        ({"window": np.ones(39)}, r"window has shape \(39,\) for blocks of 40: give a number for each sample"),
        ({"window": "hnn"}, "window is 'hnn' .*: give a window of scipy.signal, or its values"),
        ({"n_modes": 0}, "n_modes is 0: give a positive integer"),
        ({"time": np.arange(N) ** 1.1}, "the times of the 400 samples lie"),
        ({"x": FIELD[:1]}, "blocks of 40 samples, each 20 after the last, are less than 2 of the 1"),
    ],
)
def test_refused_in_one_sentence(how: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        timeseries.spod(**({"x": FIELD, "n_modes": 2, "block": 40} | how))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_pyspod_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standard = pytest.importorskip("pyspod.spod.standard")
    monkeypatch.chdir(tmp_path)
    settings = {"n_dft": 40, "time_step": 0.5, "n_space_dims": 2, "n_variables": 1, "overlap": 50, "savedir": "out"}
    theirs = standard.Standard(settings | {"mean_type": "longtime"}).fit([FIELD[..., None]])
    assert os.listdir("out")
    window = np.asarray(theirs._window).ravel()
    ours = timeseries.spod(FIELD, 3, 40, time=0.5, window=window, oversampling=4)
    # Theirs are squared amplitudes, ours are densities.
    density = 0.5 * window.sum() ** 2 / (window**2).sum()
    expected = np.real(theirs.eigs[:, :3]) * density
    assert np.abs(ours.energy - expected).sum() < 5e-3 * expected.sum()

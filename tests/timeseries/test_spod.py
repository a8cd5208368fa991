"""Spectral POD of fields and of scores, compared with scipy and pyspod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray
import zarr

from dpca import PCA, timeseries
from dpca.engine.folds.fold import plan_for
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.fixtures.other_libraries import known
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


@pytest.mark.parametrize("center", ["record", "block", None])
def test_energies_of_odd_blocks_add_up_to_the_spectrum(center: str | None) -> None:
    """As in scipy, segments of odd length overlap by half, rounded up."""
    flat = FIELD.reshape(N, -1) + 3
    given = flat - flat.mean(axis=0) if center == "record" else flat
    detrend = "constant" if center == "block" else False
    frequencies, power = scipy.signal.welch(given, 4, "hann", 25, 13, detrend=detrend, axis=0)
    found = timeseries.spod(flat, 3, timeseries.Blocks(25, center=center), time=0.25)
    np.testing.assert_allclose(found.frequencies, frequencies)
    np.testing.assert_allclose(found.total, power.sum(axis=1), rtol=1e-9)


def test_time_series_have_the_modes_of_the_field(exact: timeseries.SpectralModes) -> None:
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
    monkeypatch.setattr("dpca.engine.folds.plan.SEGMENT_BYTES", 5 * 40 * 30 * 8)
    monkeypatch.setattr("dpca.engine.folds.plan._SHORT_TASK", 0)
    segments: list[int] = []

    def planned(*given: Any, **how: Any) -> Any:
        segments.append(len((plan := plan_for(*given, **how)).segments))
        return plan

    monkeypatch.setattr("dpca.engine.folds.fold.plan_for", planned)
    for client in (None, cluster):
        found = timeseries.spod(x, 3, 40, oversampling=4, run=Run(client=client), band=(0.02, 0.2))
        here = (exact.frequencies >= 0.02) & (exact.frequencies <= 0.2)
        np.testing.assert_allclose(found.frequencies, exact.frequencies[here])
        assert np.abs(found.energy - exact.energy[here]).sum() < 5e-3 * exact.energy[here].sum()
        assert segments[-1] > 2 or how == "dask"


def test_two_blocks_are_enough() -> None:
    assert timeseries.spod(FIELD[:60], 2, 40).n_blocks == 2
    with pytest.raises(DataError, match=r"block.*\b40\b.*\b59\b"):
        timeseries.spod(FIELD[:59], 2, 40)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"block": 300}, "block is 300 .* 400"),
        ({"block": 1}, "block is 1:"),
        ({"block": timeseries.Blocks(40, overlap=1)}, "overlap is 1:"),
        ({"band": (0.51, 0.6)}, r"band is \(0.51, 0.6\) .* 0 to 0.5 .* 0.025"),
        ({"block": timeseries.Blocks(40, center="all")}, "center is 'all'"),
        ({"block": timeseries.Blocks(40, window=np.ones(39))}, r"window has shape \(39,\).* 40 "),
        ({"block": timeseries.Blocks(40, window="hnn")}, "window is 'hnn'"),
        ({"n_modes": 0}, "n_modes is 0"),
        ({"time": np.arange(N) ** 1.1}, "time steps of 400 samples"),
        ({"x": FIELD[:1]}, "block is 40 .* 1:"),
    ],
)
def test_refused_in_one_sentence(how: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        timeseries.spod(**({"x": FIELD, "n_modes": 2, "block": 40} | how))


@pytest.mark.parametrize(("block", "overlap"), [(40, 0.5), (25, 0.5), (30, 0.7)])
def test_as_pyspod_does(block: int, overlap: float) -> None:
    theirs = known("pyspod")
    window, energies = theirs[f"window {block}"], theirs[f"energies {block}"]
    ours = timeseries.spod(FIELD, 3, timeseries.Blocks(block, overlap, window), time=0.5, oversampling=30)
    assert ours.n_blocks == theirs[f"blocks {block}"]
    # Theirs are squared amplitudes, ours are densities.
    density = 0.5 * window.sum() ** 2 / (window**2).sum()
    # As in scipy, the highest frequency of an odd block includes its negative; pyspod leaves that out.
    same = slice(None if block % 2 == 0 else -1)
    expected = energies[same] * density
    np.testing.assert_allclose(ours.energy[same], expected, rtol=1e-6, atol=1e-12 * expected.max())


@pytest.mark.parametrize(
    ("block", "overlap", "shared"),
    [(5, 0.5, 3), (5, 0, 0), (100, 0.07, 7), (100, 0.55, 55), (7, 0.999, 6), (9, 0.01, 1)],
)
def test_an_overlap_is_at_least_what_was_asked_for_in_whole_samples(block: int, overlap: float, shared: int) -> None:
    """The overlap equals that of pyspod, in percent: 55 of 100, although .55 * 100 is slightly more in floats."""
    found = timeseries.spod(FIELD[:250], 1, timeseries.Blocks(block, overlap), band=(0, 0))
    assert found.n_blocks == (250 - shared) // (block - shared)

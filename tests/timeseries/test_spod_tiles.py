"""Spectral POD of few large fields by blocks of attributes, against the decomposition of whole fields."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca import timeseries
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.centered import CenteredSource
from dpca.engine.sources.source import as_source
from dpca.rules.covariance.spectral import BlockModes, Fourier, SpectralGram, SpectralSVD, fix_phases, spectral_weights
from dpca.storage.run import Run
from dpca.timeseries import cross_spectra
from tests.helpers.forked import Programs, printed_by

N, SHAPE = 40, (20, 30, 40)
LITTLE = Run(memory=40 * 2**20, threads=1)


def field_of(n: int, shape: tuple[int, ...], dtype: Any = "f4") -> np.ndarray[Any, Any]:
    rng, time = np.random.default_rng(0), np.arange(n)
    waves = [rng.normal(size=shape) + 1j * rng.normal(size=shape) for _ in range(3)]
    turns = [np.exp(2j * np.pi * time / period) for period in (4, 7, 10)]
    moving = sum(
        np.multiply.outer(turn, wave).real * size for turn, wave, size in zip(turns, waves, (9, 6, 4), strict=True)
    )
    return (40 + moving + rng.normal(size=(n, *shape))).astype(dtype)


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    return field_of(N, SHAPE)


def check(found: timeseries.SpectralModes, known: timeseries.SpectralModes, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.frequencies, known.frequencies)
    np.testing.assert_allclose(found.total, known.total, rtol=tolerance)
    np.testing.assert_allclose(found.energy, known.energy, rtol=tolerance, atol=tolerance * known.energy.max())
    assert found.coefficients.dtype == known.coefficients.dtype
    first = np.einsum("fd,fd->f", found.coefficients[:, 0].conj(), known.coefficients[:, 0])
    strong = known.energy[:, 0] > 2 * known.energy[:, 1]
    assert strong.any()
    np.testing.assert_allclose(first[strong], 1, atol=100 * tolerance)  # with their phase
    inner = np.einsum("fkd,fjd->fkj", found.coefficients.conj(), found.coefficients)
    np.testing.assert_allclose(inner, np.broadcast_to(np.eye(inner.shape[1]), inner.shape), atol=1e-4)


@pytest.mark.cases(3)
@pytest.mark.pairwise
@pytest.mark.parametrize("chunks", [(1, *SHAPE), (5, 8, 30, 20), (40, 3, 7, 40)])
@pytest.mark.parametrize("center", ["record", "block", None])
def test_no_task_holds_the_modes(
    x: np.ndarray, tmp_path: Path, chunks: tuple[int, ...], center: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    blocks, called = timeseries.Blocks(10, center=center), []
    known = timeseries.spod(path, 2, blocks, oversampling=10)
    by_tiles = cross_spectra._by_tiles
    monkeypatch.setattr(cross_spectra, "_by_tiles", lambda *args: called.append(1) or by_tiles(*args))
    found = timeseries.spod(path, 2, blocks, oversampling=10, run=LITTLE)
    assert called
    assert found.n_blocks == known.n_blocks
    check(found, known)
    assert found.modes.shape == known.modes.shape


def test_dask_arrays_and_bands(x: np.ndarray) -> None:
    lazy = da.from_array(x[:30].astype("f8"), chunks=(10, 10, 30, 40))
    options: dict[str, Any] = {"band": (0.05, 0.3), "time": 1.0}
    known = timeseries.spod(lazy, 2, 10, oversampling=10, **options)
    found = timeseries.spod(lazy, 2, 10, oversampling=10, run=Run(memory=90 * 2**20, threads=1), **options)
    check(found, known, 1e-9)


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(2, 7),
    length=st.integers(2, 9),
    d=st.integers(1, 12),
    k=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 11), max_size=2, unique=True),
    dtype=st.sampled_from(["f4", "f8", "u1"]),
    center=st.booleans(),
)
def test_any_blocks_are_the_decomposition(
    n: int, length: int, d: int, k: int, cuts: list[int], dtype: str, center: bool
) -> None:
    rng = np.random.default_rng(n)
    x = (rng.normal(size=(n, length, d)) * 9 + 30).astype(dtype)
    window, every = np.hanning(length + 2)[1:-1], np.arange(length // 2 + 1)
    rule = SpectralSVD(k, window, every, 0.5, center=center, oversampling=n)
    known = rule.finish(rule.update(rule.init(length * d, x.dtype), x.reshape(n, -1)))
    fourier = Fourier(window, every, 0.5, center)
    parts = [part for part in np.split(x, sorted(cuts), axis=2) if part.size]

    def folded(rule: Any, part: np.ndarray) -> dict[str, np.ndarray]:
        state = rule.init(part[0].size, part.dtype)
        for start in range(0, n, 3):
            state = rule.update(state, part[start : start + 3].reshape(len(part[start : start + 3]), -1))
        return rule.finish(state)

    gram = np.sum([folded(SpectralGram(fourier, n), part)["gram"] for part in parts], axis=0)
    weights, energy, total = spectral_weights(gram, min(k, d), fourier.dtype(x.dtype))
    modes = np.concatenate([folded(BlockModes(fourier, weights), part)["modes"] for part in parts], axis=1)
    fix_phases(modes)
    scale = known["total"].max()
    np.testing.assert_allclose(total, known["total"], rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(energy, known["energy"], rtol=1e-5, atol=1e-6 * scale)
    modes = modes.reshape(*energy.shape, d)
    for f in range(len(every)):
        rank = int(np.count_nonzero(energy[f] > 1e-4 * scale))
        inner = modes[f, :rank] @ modes[f, :rank].conj().T
        np.testing.assert_allclose(inner, np.eye(rank), atol=1e-2 if dtype != "f8" else 1e-7)


def test_a_constant_is_subtracted_from_any_box() -> None:
    x, mean = field_of(6, (4, 5)), np.arange(20.0).reshape(4, 5)
    source = CenteredSource(as_source(x), mean)
    region = ((1, 3), (0, 5))
    for one in (source, source.piece((1, 5), region)):
        one.reader()((1, 5), region, out := np.empty((4, 2, 5), "f4"))
        np.testing.assert_array_equal(out, (x - mean.astype("f4"))[1:5, 1:3])
    assert source.piece((1, 5), region).constant.shape == (2, 5)


def test_what_does_not_fit_is_refused(x: np.ndarray) -> None:
    with pytest.raises(PlanError, match="allow"):
        timeseries.spod(x, 2, 10, run=Run(memory=24 * 2**20))


_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca.engine.sources.source import as_source
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
from dpca.timeseries import spod
from dpca.timeseries.cross_spectra import _by_tiles
spod(np.random.default_rng(0).normal(size=(60, 2000)).astype("f4"), 1, 10, run=Run(threads=1))
before = psutil.Process().memory_info().rss
found = spod(sys.argv[1], 1, 10, band=(0, 0.1), run=Run(memory=96 * 2**20, threads=1))
print(json.dumps({"grown": peak_resident_bytes() - before, "modes": found.coefficients.nbytes}))
"""


@pytest.mark.memory
def test_measured_memory_stays_below_the_plan_and_the_modes(tmp_path: Path, programs: Programs) -> None:
    """The record has 250 MB; the mean is 8 MB, and the modes, twice while they are joined, are 16 MB."""
    shape = (32, 128, 256)
    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=(60, *shape), chunks=(10, 4, 64, 128), dtype="f4")
    for start in range(0, 60, 10):
        store[start : start + 10] = np.random.default_rng(start).normal(size=(10, *shape)).astype("f4")
    found = json.loads(printed_by(programs, [sys.executable, "-c", _PROBE, str(tmp_path / "x.zarr")]))
    assert found["grown"] <= 96 * 2**20 + 3 * found["modes"] + 3 * 8 * int(np.prod(shape))

"""Large fields keep the axes of samples: chunks are decoded once a pass, and results are those of small fields."""

from __future__ import annotations

import itertools
import mmap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dpca import EOF, timeseries
from dpca.engine.sources import source as source_module
from dpca.engine.sources.source import as_source
from dpca.models.base.mapped import release
from dpca.models.eof import eof_fit, field_survey, on_grid, projection
from dpca.models.eof.on_grid import GridAnomalies, GridAnomalySource
from dpca.models.linear import dual_solver
from dpca.models.weights.attribute_weights import field_weights
from dpca.partition.cells import CellGrid
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run

N, SHAPE, CHUNKS, K = 6, (96, 130), (1, 32, 40), 2
TIME = np.array([np.datetime64(f"{2000 + i // 2}-{1 + i % 2:02}-01", "ns") for i in range(N)])
WEIGHTS = np.random.default_rng(1).uniform(0.5, 1, size=SHAPE)
OPTIONS: list[dict[str, Any]] = [
    {"weights": WEIGHTS},
    {"weights": "coslat", "climatology": "month"},
    {"standardize": True, "detrend": True},
    {"standardize": "variable", "gaps": "interpolate"},
    {"standardize": "variable", "gaps": "drop"},
    {"solver": "streaming", "weights": "coslat"},
]


@pytest.fixture(scope="module")
def x() -> xr.DataArray:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(3, *SHAPE)) * np.array([9, 5, 3])[:, None, None]
    values = (20 + np.tensordot(rng.normal(size=(N, 3)), patterns, 1) + rng.normal(size=(N, *SHAPE))).astype("f4")
    values[:, 30:70, 35:60] = np.nan  # land, across borders of chunks
    values[:, :32, :40] = np.nan  # a whole chunk
    coords = {"time": TIME, "lat": np.linspace(-80, 80, SHAPE[0]), "lon": np.linspace(0, 359, SHAPE[1])}
    return xr.DataArray(values, coords, ("time", "lat", "lon"), attrs={"units": "K"})


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_grid, "LARGE_SAMPLE", 1000)
    monkeypatch.setattr(projection, "_BOX_BYTES", 2**13)  # many boxes, of some samples
    monkeypatch.setattr(field_survey, "_REGRESSED", 1000)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """How often each chunk of a store is read."""
    counts: Counter[tuple[int, ...]] = Counter()
    read = source_module.read_into

    def counted(array: Any, selection: Any, out: Any) -> None:
        spans = zip(selection, array.chunks, strict=True)
        counts.update(itertools.product(*(range(s.start // c, -(-s.stop // c)) for s, c in spans)))
        read(array, selection, out)

    monkeypatch.setattr(source_module, "read_into", counted)
    return counts


def stored(x: Any, path: Path, chunks: tuple[int, ...] = CHUNKS) -> str:
    zarr.create_array(str(path / "x.zarr"), data=np.asarray(x), chunks=chunks)
    return str(path / "x.zarr")


def both(x: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> tuple[EOF, EOF]:
    """The analysis with axes, and that without."""
    options = {"solver": "dual", **options}
    large = EOF(K, **options).fit(x)
    assert large.model_.sample_shape_ == SHAPE
    with monkeypatch.context() as small:
        small.setattr(on_grid, "LARGE_SAMPLE", 2**26)
        known = EOF(K, **options).fit(x)
    assert known.model_.sample_shape_ == (known.n_places_,) == (large.n_places_,)
    return large, known


@pytest.mark.parametrize("options", [{}, {"weights": WEIGHTS}, {"detrend": True, "standardize": True}], ids=len)
def test_each_chunk_is_decoded_once_in_a_pass(
    x: xr.DataArray, options: dict[str, Any], large: None, decodes: Counter[Any], tmp_path: Path
) -> None:
    """A task holds less than a row of chunks."""
    field = np.tile(np.nan_to_num(x.values), (1, 12, 12))
    path, weights = stored(field, tmp_path, (1, 384, 390)), np.tile(WEIGHTS, (12, 12))
    given = {name: weights if name == "weights" else value for name, value in options.items()}
    eof = EOF(K, **given).fit(path, run=Run(memory=75 * 10**6, threads=1))
    n_passes = 3 if "detrend" in options else 2
    assert len(decodes) == N * 3 * 4
    assert {key: count for key, count in decodes.items() if count != n_passes + (key[0] == 0)} == {}
    decodes.clear()
    eof.pcs()
    assert {*decodes.values()} == {1}


def test_chunks_of_several_samples_are_decoded_once(
    x: xr.DataArray, large: None, decodes: Counter[Any], tmp_path: Path
) -> None:
    eof = EOF(K, solver="dual").fit(path := stored(x, tmp_path, (4, 32, 40)))
    decodes.clear()
    np.testing.assert_allclose(eof.project(path), EOF(K, solver="dual").fit(x.values).pcs(), atol=1e-3)
    assert {*decodes.values()} == {1}


@pytest.mark.filterwarnings("ignore::dpca.models.eof.eof_fit.GapWarning")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options)))
def test_results_are_those_of_small_fields(
    x: xr.DataArray, options: dict[str, Any], large: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "gaps" in options:
        x = x.copy()
        x[2, 80, 3] = x[3, 5, 100] = np.nan
    eof, known = both(x, monkeypatch, options)
    eof.pcs()
    eof.save(tmp_path / "m.zarr")
    for one in (eof, EOF.load(tmp_path / "m.zarr")):
        np.testing.assert_allclose(one.explained_variance_, known.explained_variance_, rtol=1e-5)
        assert one.total_variance_ == pytest.approx(known.total_variance_, rel=1e-6)
        assert one.n_places_ == known.n_places_
        for found, expected in [
            (one.eofs(2), known.eofs(2)),
            (one.pcs(), known.pcs()),
            (one.project(x[1:4]), known.project(x[1:4])),
            (one.reconstruct(), known.reconstruct()),
            (one.rotate().eofs(), known.rotate().eofs()),
            (one.north_test()["error"], known.north_test()["error"]),
        ]:
            xr.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))


@pytest.mark.parametrize("options", OPTIONS[:3], ids=lambda options: "-".join(map(str, options)))
def test_modes_on_disk_give_lazy_maps_and_fields(
    x: xr.DataArray, options: dict[str, Any], large: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = EOF(K, solver="dual", **options).fit(x)
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 1000)
    monkeypatch.setattr("dpca.models.linear.component_store._SHARD_BYTES", 2**12)
    eof = EOF(K, solver="dual", **options).fit(x)
    np.testing.assert_allclose(np.abs(eof.pcs()), np.abs(known.pcs()), atol=1e-3)
    signs = np.sign((eof.pcs().values * known.pcs().values).sum(axis=0))
    eof.save(tmp_path / "m.zarr")
    for one in (eof, EOF.load(tmp_path / "m.zarr")):
        maps, field = one.eofs(1), one.reconstruct()
        assert isinstance(maps.data, da.Array)
        assert isinstance(field.data, da.Array)
        assert field.data.npartitions > 2
        np.testing.assert_allclose(maps * signs[:, None, None], known.eofs(1), atol=1e-7)
        whole = known.reconstruct()
        np.testing.assert_allclose(field, whole, atol=1e-3)
        np.testing.assert_allclose(field[::-2, 5, 3:90:4], whole[::-2, 5, 3:90:4], atol=1e-3)
        lazy = projection._LazyField(
            one._anomalies, one.model_.basis_, one.pcs().values, *one._calendar.given(x.time, one.pcs(), x.time)
        )
        np.testing.assert_array_equal(lazy[1:5:2, 90, 100:3:-7], np.asarray(field)[1:5:2, 90, 100:3:-7])
        np.testing.assert_allclose(
            one.reconstruct(one.pcs(), n_modes=1), known.reconstruct(known.pcs(), n_modes=1), atol=1e-3
        )
        np.testing.assert_allclose(one.project(x[1:4]), one.pcs()[1:4], atol=1e-3)


def test_samples_with_gaps_have_no_scores_or_are_named(x: xr.DataArray, large: None) -> None:
    eof = EOF(K, solver="dual").fit(x)
    some = x.copy()
    some[2] = np.nan
    scores = eof.project(some)
    assert np.isnan(scores[2]).all()
    np.testing.assert_array_equal(np.delete(scores, 2, 0), np.delete(eof.pcs(), 2, 0))
    some[4, 90, 120] = np.nan
    with pytest.raises(DataError, match=r"sample.4\b"):
        eof.project(some)
    some[4, 90, 120] = np.inf
    with pytest.raises(DataError, match=r"sample.4\b"):
        eof.project(some)
    weight = np.array([1.0, 2, 0, 1, 0.5, 3])
    some[4, 90, 120], some[2, 40, 20] = x[4, 90, 120], 1
    weighted = EOF(K, solver="dual").fit(some, sample_weight=weight)
    assert np.isnan(weighted.pcs()).all(axis=1).values.tolist() == [False, False, True, False, False, False]
    whole = x.values.reshape(N, -1)[:, np.isfinite(x.values[0]).ravel()].astype(float)
    whole = whole - np.average(whole, axis=0, weights=weight)
    values = np.linalg.svd(whole * np.sqrt(weight)[:, None], compute_uv=False)[:K] ** 2 / (weight.sum() - 1)
    np.testing.assert_allclose(weighted.explained_variance_, values, rtol=1e-5)


def test_lazy_fields_have_lazy_scores(x: xr.DataArray, large: None) -> None:
    eof = EOF(K, solver="dual").fit(x.chunk(time=2, lat=50))
    lazy = eof.project(x.chunk(time=2, lat=50))
    assert isinstance(lazy.data, da.Array)
    np.testing.assert_allclose(lazy, eof.pcs(), atol=1e-4)


def test_statistics_are_in_files(x: xr.DataArray, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    eof = EOF(K, solver="dual", standardize=True, detrend=True).fit(x)
    for values in (eof._anomalies.gain, eof._anomalies.level, eof._anomalies.slope):
        assert isinstance(file_of(values), mmap.mmap)
        kept = np.array(values)
        release(values)
        np.testing.assert_array_equal(values, kept)
    with monkeypatch.context() as full:
        full.setattr("dpca.storage.disk._free", lambda path: 0)
        with pytest.raises(StoreError, match="statistics"):
            EOF(K, solver="dual", detrend=True).fit(x)
    release(kept)
    assert file_of(kept) is None


def file_of(array: Any) -> Any:
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def test_long_gaps_of_large_fields_are_interpolated_by_blocks(
    x: xr.DataArray, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eof_fit, "_MOST_HALO", 0)
    gappy = x.copy()
    gappy[1:5, 90, 3] = np.nan
    filled = gappy.interpolate_na("time")
    found, known = (EOF(K, solver="dual", gaps="interpolate").fit(one) for one in (gappy, filled))
    np.testing.assert_allclose(found.explained_variance_, known.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(found.pcs(), known.pcs(), atol=1e-3)


def test_fields_with_few_data_do_not_keep_their_axes(x: xr.DataArray, large: None) -> None:
    eof = EOF(K, solver="dual").fit(x.where(x.lat > 10))
    assert eof.model_.sample_shape_ == (eof.n_places_,)


def test_fields_that_are_filled_by_modes_do_not_keep_their_axes(x: xr.DataArray, large: None) -> None:
    gappy = x.copy()
    gappy[3, 90, 100:] = np.nan
    eof = EOF(K, solver="dual", gaps="iterate").fit(gappy)
    assert eof.model_.sample_shape_ == (eof.n_places_,)


def test_modes_of_time_series(x: xr.DataArray, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    eof, known = both(x, monkeypatch, {})
    found, expected = (timeseries.hilbert_eof(one.pcs(), 2, model=one, time=1).modes for one in (eof, known))
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)


def test_blocks_read_what_the_whole_source_reads(x: xr.DataArray) -> None:
    rng, there = np.random.default_rng(0), np.isfinite(x.values[0])
    parts = rng.uniform(size=SHAPE), rng.normal(size=(2, *SHAPE)), rng.normal(size=SHAPE)
    inner = as_source(x.values)
    inner.with_gaps = True
    source = GridAnomalySource(inner, GridAnomalies(there, *parts), np.arange(N) % 2, np.linspace(-1, 1, N), False)
    everything = tuple((0, length) for length in SHAPE)
    source.reader()((0, N), everything, whole := np.empty((N, *SHAPE), "f4"))
    gain, level, slope = parts
    known = gain * (x.values - level[np.arange(N) % 2] - slope * np.linspace(-1, 1, N)[:, None, None])
    np.testing.assert_allclose(whole, np.where(there, known, 0), atol=1e-4)
    for box in [((0, 10), (20, 50)), ((35, 36), (36, 40)), ((60, 96), (0, 130))]:
        piece = source.piece((1, 5), box)
        assert piece.anomalies.level.shape == (2, *(b - a for a, b in box))
        for one in (source, piece):
            one.reader()((1, 5), box, found := np.empty((4, *(b - a for a, b in box)), "f4"))
            np.testing.assert_array_equal(found, whole[1:5, *(slice(*ends) for ends in box)])


def test_weights_of_latitudes_are_not_repeated_in_memory(x: xr.DataArray) -> None:
    eof = EOF(K, weights="coslat").fit(x)
    found = field_weights("coslat", eof._labels, SHAPE)
    assert found is not None
    assert found.strides[1] == 0
    np.testing.assert_allclose(found, np.broadcast_to(np.sqrt(np.cos(np.deg2rad(x.lat.values)))[:, None], SHAPE))


def test_blocks_that_end_at_the_same_time_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = CellGrid((8,), (2,))
    joined, create = field_survey._Joined(grid, 3), field_survey._Joined._created

    def slowly(self: Any, *about: Any) -> Any:
        time.sleep(0.05)
        return create(self, *about)

    monkeypatch.setattr(field_survey._Joined, "_created", slowly)
    result = {"sums": np.ones((1, 2)), "empty": np.zeros(3, np.int8)}
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda part: joined.write(part, dict(result)), range(4))]
    np.testing.assert_array_equal(joined.arrays["sums"], np.ones((1, 8)))

"""Few fields with more grid points than a task can hold a field of: the Gram matrix by blocks of grid points."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dpca import EOF
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import box_of_run
from dpca.models.base.convergence import ConvergenceWarning
from dpca.models.eof import on_grid as on_grid_module
from dpca.models.eof import rotation
from dpca.models.eof.anomalies import Anomalies, AnomalySource, chunk_run
from dpca.models.eof.eof_fit import GapWarning
from dpca.models.eof.field_survey import SurveySource, survey
from dpca.models.linear import dual_solver
from dpca.partition.cells import CellGrid
from dpca.rules.covariance.survey import Survey
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from tests.helpers.forked import Programs, printed_by

SHAPE, N, K = (40, 60, 70), 9, 3
LITTLE = Run(memory=36 * 2**20, threads=2)
WEIGHTS = np.random.default_rng(1).uniform(size=SHAPE)
MONTHS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(4, *SHAPE)) * np.array([9, 6, 4, 2])[:, None, None, None]
    field = (5 + np.tensordot(rng.normal(size=(N, 4)), patterns, 1) + rng.normal(size=(N, *SHAPE))).astype("f4")
    field[:, :5] = np.nan  # land: whole planes, and a part of each row
    field[:, 10:20, 20:40, 30:50] = np.nan
    return field


@pytest.fixture(params=[False, True], ids=["packed", "on grid"])
def on_grid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the field is large, so that samples keep their axes."""
    if request.param:
        monkeypatch.setattr(on_grid_module, "LARGE_SAMPLE", 1000)
    return bool(request.param)


def anomalies_of(x: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """The weighted anomalies at grid points with data, by their definition."""
    rows = x.reshape(N, -1).astype(float)
    there = np.isfinite(rows).all(axis=0)
    rows = rows[:, there]
    if options.get("climatology"):
        rows -= np.array([rows[month == MONTHS].mean(axis=0) for month in range(3)])[MONTHS]
    if options.get("detrend"):
        time = np.arange(N) - (N - 1) / 2
        rows = rows - rows.mean(axis=0)
        rows -= np.outer(time, time @ rows / (time @ time))
    rows = rows - rows.mean(axis=0)
    if options.get("standardize"):
        rows /= rows.std(axis=0)
    return rows * WEIGHTS.ravel()[there] if "weights" in options else rows


def check(eof: EOF, x: np.ndarray, options: dict[str, Any]) -> None:
    rows = anomalies_of(x, options)
    scores, values, modes = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(eof.explained_variance_, values[:K] ** 2 / (N - 1), rtol=1e-6)
    components = np.asarray(eof.model_.components_)
    if eof.model_.sample_shape_ == SHAPE:
        there = np.isfinite(x).all(axis=0).ravel()
        assert not components[:, ~there].any()
        components = components[:, there]
    assert np.linalg.svd(components @ modes[:K].T, compute_uv=False).min() > 1 - 1e-6
    assert eof.total_variance_ == pytest.approx((values**2).sum() / (N - 1), rel=1e-6)
    assert 0.99999 < eof.captured_bound_ <= 1
    pcs, known = np.asarray(eof.pcs()), scores[:, :K] * values[:K]
    known *= np.sign((pcs * known).sum(axis=0))
    np.testing.assert_allclose(pcs, known, atol=1e-4 * values[0])


CHUNKS = [(1, *SHAPE), (2, 16, 60, 35), (9, 7, 13, 70)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"detrend": True},
    {"standardize": True, "weights": WEIGHTS},
    {"standardize": True, "gaps": "interpolate"},
    {"solver": "auto", "weights": WEIGHTS},
]


@pytest.mark.cases(3)
@pytest.mark.pairwise
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_task_holds_a_field(
    x: np.ndarray, tmp_path: Path, chunks: tuple[int, ...], options: dict[str, Any], on_grid: bool
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    eof = EOF(K, **options).fit(str(tmp_path / "x.zarr"), run=LITTLE)
    plan = eof.model_.fit_report_.plan
    assert plan.groups[0].region[0][1] < x[0].size  # attributes of a block
    assert plan.task_bytes <= LITTLE.memory  # type: ignore[operator]
    assert eof.model_.solver_ == "dual"  # type: ignore[attr-defined]
    assert eof.model_.sample_shape_ == (SHAPE if on_grid else (eof.n_places_,))
    check(eof, x, options)


@pytest.mark.parametrize("in_dask", [False, True])
def test_climatologies_of_fields_with_names(x: np.ndarray, in_dask: bool, on_grid: bool) -> None:
    months = np.array([np.datetime64(f"{2000 + i // 3}-{1 + i % 3:02}-01", "ns") for i in range(N)])
    values = da.from_array(x, chunks=(3, 20, 60, 70)) if in_dask else x
    field = xr.DataArray(values, {"time": months}, ("time", "z", "y", "x"))
    options = {"climatology": "month"}
    # Dask holds all samples of a block in a task.
    eof = EOF(K, **options).fit(field, run=Run(memory=64 * 2**20 if in_dask else LITTLE.memory, threads=1))
    assert eof.model_.solver_ == "dual"  # type: ignore[attr-defined]
    assert eof._anomalies.level is not None
    # A cluster of another test may be the current one.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"}):
        check(eof, x, options)


def test_saved_and_loaded(x: np.ndarray, tmp_path: Path, on_grid: bool) -> None:
    eof = EOF(K, weights=WEIGHTS).fit(x, run=LITTLE)
    eof.pcs()
    eof.save(tmp_path / "m.zarr")
    loaded = EOF.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.eofs(), eof.eofs())
    np.testing.assert_array_equal(loaded.pcs(), eof.pcs())


def test_workers_find_the_same_bytes(x: np.ndarray, tmp_path: Path, cluster: Any, on_grid: bool) -> None:
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=(2, 16, 60, 35))
    options: dict[str, Any] = {"standardize": True, "detrend": True, "weights": WEIGHTS}
    here = EOF(K, **options).fit(path, run=Run(memory=LITTLE.memory, threads=1))
    there = EOF(K, **options).fit(path, run=Run(memory=LITTLE.memory, client=cluster))
    assert there.model_.solver_ == "dual"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(there.explained_variance_, here.explained_variance_)
    np.testing.assert_array_equal(there.model_.components_, here.model_.components_)


def test_modes_on_disk(x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_grid: bool) -> None:
    known = EOF(K, detrend=True).fit(x, run=LITTLE)
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 1000)
    eof = EOF(K, detrend=True).fit(x, run=LITTLE)
    assert isinstance(eof.model_.components_, da.Array)
    check(eof, x, {"detrend": True})
    np.testing.assert_allclose(np.abs(eof.eofs()), np.abs(known.eofs()), atol=1e-6)
    np.testing.assert_allclose(eof.reconstruct(), known.reconstruct(), atol=1e-4)
    monkeypatch.setattr(rotation, "_MOST_TURNS", 3)  # patterns of noise have no simple structure
    with pytest.warns(ConvergenceWarning):
        turned, expected = (one.rotate().explained_variance_ for one in (eof, known))
    np.testing.assert_allclose(turned, expected, rtol=1e-4)
    eof.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(EOF.load(tmp_path / "m.zarr").eofs(), eof.eofs())


def test_with_memory_streaming_stays_what_it_is(x: np.ndarray) -> None:
    assert EOF(K).fit(x).model_.method_ == "incremental-svd"  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"oversampling": 3}, {"solver": "randomized"}], ids=str)
def test_what_the_exact_solver_does_not_give_is_not_replaced(x: np.ndarray, options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="allow"):
        EOF(K, **options).fit(x, run=Run(memory=26 * 2**20))


@pytest.mark.parametrize("place", [(0, 0, 0), (20, 30, 40), (39, 59, 69)])
def test_a_gap_is_found_in_any_block(x: np.ndarray, place: tuple[int, ...], on_grid: bool) -> None:
    """Also where the first sample has no data, and so beyond the first or last grid point with data."""
    field = x.copy()
    field[:, -3:] = np.nan
    field[(4, *place)] = 1 if np.isnan(field[(4, *place)]) else np.nan
    with pytest.warns(GapWarning, match=r"^1\b.*\b9\b"):
        eof = EOF(K).fit(field, run=LITTLE)
    known = field.copy()
    known[(slice(None), *place)] = np.nan
    check(eof, known, {})


def test_a_sample_without_values_in_some_blocks_only(x: np.ndarray, on_grid: bool) -> None:
    """It has gaps there. A block alone could not know that the sample has values elsewhere."""
    field = x.copy()
    field[4, :20] = np.nan
    source = as_source(field)
    source.with_gaps = True
    rule = Survey(np.zeros(N, np.uint16), np.linspace(-1, 1, N), np.linspace(1, 2, N))
    arguments = rule, np.nan_to_num(field[0])
    few = survey(source, *arguments, LITTLE, "few")
    many = survey(source, *arguments, Run(memory=30 * 2**20, threads=1), "many")
    whole = survey(source, *arguments, Run(memory=2**30, threads=1), "whole")
    assert whole["there"].all()
    for found in (few, many):
        for name, values in whole.items():
            np.testing.assert_array_equal(found[name], values)


def test_an_infinite_value_in_the_last_block(x: np.ndarray, on_grid: bool) -> None:
    field = x.copy()
    field[6, 39, 59, 69] = np.inf
    with pytest.raises(DataError, match="sample.6.*infinite"):
        EOF(K, detrend=True).fit(field, run=LITTLE)


@pytest.mark.parametrize(
    ("shape", "run", "box"),
    [
        ((4, 5, 6), (0, 120), ((0, 4), (0, 5), (0, 6))),
        ((4, 5, 6), (31, 59), ((1, 2), (0, 5), (0, 6))),
        ((4, 5, 6), (29, 31), ((0, 2), (0, 5), (0, 6))),
        ((4, 5, 6), (31, 32), ((1, 2), (0, 1), (1, 2))),
        ((1, 5, 6), (7, 11), ((0, 1), (1, 2), (1, 5))),
        ((7,), (2, 5), ((2, 5),)),
    ],
)
def test_the_box_of_a_run(shape: tuple[int, ...], run: tuple[int, int], box: Any) -> None:
    assert box_of_run(shape, *run) == box
    inside = np.zeros(shape, bool)
    inside[tuple(slice(a, b) for a, b in box)] = True
    places = np.flatnonzero(inside)
    assert np.array_equal(places, np.arange(places[0], places[-1] + 1))
    assert inside.ravel()[slice(*run)].all()


def test_runs_of_chunks(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(3, 1, 8, 10), chunks=(1, 1, 2, 5), dtype="f4")
    assert chunk_run(as_source(array)) == 20
    assert chunk_run(as_source(np.zeros((3, 4, 5)))) == 5


def test_a_task_is_sent_the_maps_of_its_grid_points() -> None:
    """Blocks read what the whole source reads, whatever they are."""
    rng, places = np.random.default_rng(0), np.array([1, 2, 7, 8, 9, 13, 20, 22])
    x = np.full((6, 4, 6), np.nan)
    x.reshape(6, -1)[:, places] = rng.normal(size=(6, 8))
    known = Anomalies(places, (4, 6), rng.uniform(size=8), rng.normal(size=(2, 8)), rng.normal(size=8))
    for certain in (True, False):
        source = AnomalySource(as_source(x), known, np.arange(6) % 2, np.linspace(-1, 1, 6), certain)
        source.source.with_gaps = True
        source.reader()((0, 6), ((0, 8),), whole := np.empty((6, 8)))
        for a, b in [(0, 3), (3, 4), (2, 8), (0, 8)]:
            piece = source.piece((1, 5), ((a, b),))
            assert len(piece.anomalies.places) <= b - a + 1
            for one in (piece, source):
                one.reader()((1, 5), ((a, b),), found := np.empty((4, b - a)))
                np.testing.assert_array_equal(found, whole[1:5, a:b])
    surveyed = SurveySource(as_source(x), np.arange(24.0).reshape(4, 6), CellGrid((4, 6), (3, 4)))
    assert surveyed.shape == (6, 4 * (12 + 2))
    surveyed.reader()((0, 6), ((0, 56),), whole := np.empty((6, 56)))
    np.testing.assert_array_equal(whole[:, 42:44], x[:, 3, 4:] - [22, 23])
    np.testing.assert_array_equal(whole[:, 44:], np.column_stack([*[whole[:, 42]] * 10, np.zeros(6), np.arange(6)]))
    piece = surveyed.piece((1, 5), ((14, 28),))
    assert piece.shift.shape == (3, 2)
    piece.reader()((1, 5), ((14, 28),), found := np.empty((4, 14)))
    np.testing.assert_array_equal(found, whole[1:5, 14:28])


def test_land_at_the_first_grid_points_of_a_dask_array() -> None:
    x = np.random.default_rng(0).normal(size=(20, 6, 7))
    x[:, :2] = np.nan
    plain, lazy = (EOF(2).fit(field) for field in (x, da.from_array(x, chunks=(5, 6, 7))))
    np.testing.assert_allclose(lazy.pcs(), plain.pcs(), atol=1e-12)


_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca import EOF
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
options = json.loads(sys.argv[2])
EOF(1, **options).fit(np.random.default_rng(0).normal(size=(9, 2000)), run=Run(threads=1))
before = psutil.Process().memory_info().rss
eof = EOF(1, **options).fit(sys.argv[1], run=Run(memory=72 * 2**20, threads=1))
grown, plan = peak_resident_bytes() - before, eof.model_.fit_report_.plan
planned, block = plan.task_bytes + plan.caller_bytes, plan.groups[0].region[0][1]
print(json.dumps({"grown": grown, "planned": planned, "block": block}))
"""


@pytest.mark.memory
@pytest.mark.parametrize("options", [{}, {"detrend": True, "standardize": True}], ids=str)
def test_measured_memory_stays_below_the_plan_and_some_maps(
    tmp_path: Path, options: dict[str, Any], programs: Programs
) -> None:
    """A map has 8 bytes for each grid point: 2 MB. The stack has 210 MB."""
    n, shape = 200, (64, 64, 64)
    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=(n, *shape), chunks=(20, 8, 64, 64), dtype="f4")
    rng = np.random.default_rng(0)
    for start in range(0, n, 20):
        store[start : start + 20] = rng.normal(size=(20, *shape)).astype("f4")
    arguments = [sys.executable, "-c", _PROBE, str(tmp_path / "x.zarr"), json.dumps(options)]
    found = json.loads(printed_by(programs, arguments))
    maps = 12 * 8 * int(np.prod(shape))
    assert found["block"] < np.prod(shape)
    assert found["grown"] <= found["planned"] + maps
    assert found["planned"] + maps < n * 4 * int(np.prod(shape)) / 2

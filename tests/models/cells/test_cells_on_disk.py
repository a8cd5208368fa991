"""Components of cells that are put together on disk: the same model as in memory, and nothing of it whole."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

import dpca
from dpca import BandPCA, CellPCA
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.jobs import encode_store, fit_store, reconstruct_store, transform_store
from dpca.models.base import mapped
from dpca.models.cells import cells_on_disk
from dpca.models.linear import component_store
from dpca.representation import linear
from dpca.storage.errors import DataError, PlanError, StoreError
from dpca.storage.run import Run
from dpca.storage.stack import open_stack
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.helpers.patterned import Stopped, patterned

SHAPE = (3, 30, 50)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all components of cells be on disk, in several blocks and shards, and be read in several boxes."""
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    monkeypatch.setattr(linear, "_READ_FEATURES", 2**12)
    monkeypatch.setattr(cells_on_disk, "_BLOCK_BYTES", 2**16)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**14)


def samples(n: int, dtype: str, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    return patterned(n, shape, dtype, len(shape))


def in_memory(x: Any, *args: Any, run: Run = Run(), **options: Any) -> CellPCA:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_on_disk, "MOST_BYTES", 2**40)
        return CellPCA(*args, **options).fit(x, run=run)


def assert_same(model: CellPCA, other: CellPCA) -> None:
    """Assert that a model on disk is bit by bit the one in memory."""
    assert isinstance(model.components_, da.Array)
    assert isinstance(other.components_, np.ndarray)
    for name in ("components_", "mean_", "explained_variance_", "total_variance_", "singular_values_"):
        found, expected = np.asarray(getattr(model, name)), np.asarray(getattr(other, name))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.cases(2)
@pytest.mark.parametrize("chunks", [(1, *SHAPE), (2, 2, 7, 50), (40, 1, 16, 9)])
@pytest.mark.parametrize(("dtype", "n"), [("uint8", 9), ("float32", 9), ("int16", 40), ("float64", 40)])
@pytest.mark.usefixtures("small")
def test_it_is_the_model_in_memory(tmp_path: Path, chunks: tuple[int, ...], dtype: str, n: int) -> None:
    x, path = samples(n, dtype), str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(min(n, chunks[0]), *chunks[1:]))
    run = Run(memory=36 * 2**20)
    for k, cell in ((3, (2, 8, 8)), (None, (3, 4, 7)), (1, (1, 30, 11))):
        if k is None and n == 9:
            continue
        model, other = (make(path, k, cell_shape=cell, run=run) for make in (_on_disk, in_memory))
        assert_same(model, other)
    np.testing.assert_array_equal(model.ranks_, other.ranks_)
    assert model.report_numbers() == other.report_numbers()
    expected = other.transform(x)
    for given in (x, path, da.from_array(x, chunks=(4, 3, 10, 30))):
        scores = model.transform(given)
        assert isinstance(scores, np.ndarray if given is x else da.Array)
        assert scores.dtype == expected.dtype
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    back = model.inverse_transform(expected)
    np.testing.assert_allclose(back, other.inverse_transform(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.inverse_transform(da.from_array(expected)), back, rtol=1e-6)
    assert model.score(x) == pytest.approx(other.score(x), rel=1e-6)
    fields = model.to_xarray()
    np.testing.assert_array_equal(fields["components"], other.to_xarray()["components"])
    np.testing.assert_array_equal(np.asarray(model.component_maps(1)), other.component_maps(1))


def _on_disk(x: Any, *args: Any, run: Run, **options: Any) -> CellPCA:
    return CellPCA(*args, **options).fit(x, run=run)


@pytest.mark.parametrize("shape", [(20, 31, 3), (57,), (4, 6, 8, 2)])
@pytest.mark.usefixtures("small")
def test_channels_and_any_number_of_axes(shape: tuple[int, ...]) -> None:
    x, cell = samples(12, "uint8", shape), {2: (8, 8), 1: (10,), 3: (3, 4, 5)}[max(1, len(shape) - 1)]
    options = {"cell_shape": cell, "random_state": 0}
    model, other = CellPCA(4, **options).fit(x), in_memory(x, 4, **options)
    assert_same(model, other)
    for k in (1, 4):
        scores = other.transform(x)[..., :k]
        np.testing.assert_allclose(model.inverse_transform(scores, k), other.inverse_transform(scores, k), atol=1e-4)


@pytest.fixture
def many(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let many cells be on disk, in a few blocks."""
    monkeypatch.setattr(cells_on_disk, "_BLOCK_BYTES", 2**19)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**18)


@pytest.mark.usefixtures("many")
def test_many_small_groups_and_threads_make_the_same_model(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=samples(6, "uint8", (600, 400)), chunks=(1, 70, 90))
    expected = in_memory(path, 2, cell_shape=9)
    for threads, memory in ((1, 40), (4, 44)):
        model = CellPCA(2, cell_shape=9).fit(path, run=Run(threads=threads, memory=memory * 2**20))
        assert model.fit_report_.note.startswith("Gram")
        assert len(model.fit_report_.plan.groups) > 3
        assert_same(model, expected)


@pytest.mark.usefixtures("small")
def test_a_stored_model_is_read_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples(9, "float32")
    model, other = CellPCA(3, cell_shape=(2, 8, 8)).fit(x), in_memory(x, 3, cell_shape=(2, 8, 8))
    model.save(tmp_path / "a.zarr")
    other.save(tmp_path / "b.zarr")
    loaded = dpca.load(tmp_path / "a.zarr")
    assert loaded.basis_.fingerprint() == model.basis_.fingerprint()
    assert_same(loaded, CellPCA.load(tmp_path / "b.zarr"))
    loaded.save(tmp_path / "a.zarr")  # the same content: left as it is
    restored = pickle.loads(pickle.dumps(loaded))
    np.testing.assert_array_equal(restored.transform(x), loaded.transform(x))
    assert clone(loaded).get_params() == model.get_params()
    # A reader that knows nothing of it finds whole arrays.
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "a.zarr")["components"][:], other.components_)
    shard = next(path for path in (tmp_path / "a.zarr" / "components" / "c").rglob("*") if path.is_file())
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(StoreError):
        dpca.load(tmp_path / "a.zarr").components_.compute()


@pytest.mark.usefixtures("small")
def test_jobs_read_boxes_of_it(tmp_path: Path) -> None:
    x, path = samples(9, "uint8"), str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(1, 3, 10, 25))
    stack, estimator = open_stack(path, data_range=(0, 255)), CellPCA(3, cell_shape=(2, 8, 8))
    fitted = fit_store(stack, tmp_path / "disk.zarr", estimator, run=Run(memory=40 * 2**20))
    assert isinstance(fitted.model.components_, da.Array)
    assert sorted(os.listdir(tmp_path)) == ["disk.zarr", "x.zarr"]
    other = in_memory(path, 3, cell_shape=(2, 8, 8), run=Run(memory=40 * 2**20))
    assert_same(fitted.model, other)  # reads its store now
    np.testing.assert_allclose(fitted.model.transform(x), other.transform(x), rtol=1e-4, atol=1e-4)
    other.save(tmp_path / "memory.zarr")
    found = {}
    for name in ("disk", "memory"):
        run = Run(memory=60 * 2**20)
        target = tmp_path / f"scores-{name}.zarr"
        transform_store(stack, tmp_path / f"{name}.zarr", target, reconstruct=True, run=run)
        reconstruct_store(tmp_path / f"{name}.zarr", target, tmp_path / f"again-{name}.zarr", run=run)
        found[name] = [np.asarray(zarr.open_group(target)[array]) for array in ("scores", "reconstructions", "mse")]
        found[name].append(np.asarray(open_stack(tmp_path / f"again-{name}.zarr").samples))
    for one, two in zip(found["disk"], found["memory"], strict=True):
        # Values between two integers may be rounded to either.
        np.testing.assert_allclose(
            one.astype(float), two.astype(float), rtol=1e-4, atol=1 if one.dtype == x.dtype else 1e-3
        )


@pytest.mark.usefixtures("small")
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this user put components into the folder at the same time.
    own = tmp_path / "own"
    own.mkdir()
    for module in (mapped, component_store):
        monkeypatch.setattr(module, "private_folder", lambda: str(own))

    def folders() -> set[str]:
        return {name for name in os.listdir(own) if name.startswith("components-")}

    before = folders()
    model = CellPCA(2, cell_shape=(3, 10, 10)).fit(samples(6, "float32"))
    assert len(folders() - before) == 1  # the files in which they were put together are gone
    del model
    gc.collect()
    assert folders() == before
    with rehearsing(Workers(1, 1, 10**9), str(tmp_path)) as found:
        CellPCA(2, cell_shape=(3, 10, 10)).fit(samples(6, "float32"))
    assert len(found.costs) == 1
    assert folders() == before


@pytest.mark.usefixtures("many")
def test_an_interrupted_fit_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = str(tmp_path / "x.zarr")
    zarr.create_array(x, data=samples(6, "uint8", (600, 400)), chunks=(1, 70, 90))
    run = Run(threads=1, memory=40 * 2**20, checkpoints=Checkpoints(str(tmp_path / "kept")))
    expected, written = in_memory(x, 2, cell_shape=9, run=Run(threads=1, memory=run.memory)), list[int]()
    write = cells_on_disk.CellsOnDisk.write_all

    def failing(store: Any, parts: Any, results: Any) -> Any:
        written.append(len(parts))
        if len(written) == 2:
            raise Stopped
        return write(store, parts, results)

    monkeypatch.setattr(cells_on_disk.CellsOnDisk, "write_all", failing)
    with pytest.raises(Stopped):
        CellPCA(2, cell_shape=9).fit(x, run=run)
    model = CellPCA(2, cell_shape=9).fit(x, run=run)
    assert len(written) > 4
    assert_same(model, expected)


@pytest.mark.usefixtures("many")
def test_workers_send_them(tmp_path: Path, hidden_cluster: Any) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=samples(6, "uint8", (600, 400)), chunks=(1, 70, 90))
    run = Run(client=hidden_cluster, memory=44 * 2**20)
    model, other = CellPCA(2, cell_shape=9).fit(path, run=run), in_memory(path, 2, cell_shape=9, run=run)
    assert_same(model, other)
    np.testing.assert_allclose(model.transform(path).compute(), other.transform(path).compute(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_what_remains_in_memory() -> None:
    x = samples(12, "float32")
    for options in ({}, {"shared": True}):
        kept = CellPCA(2, cell_shape=(3, 10, 10), keep_state=True, **options).fit(x)
        assert isinstance(kept.components_, np.ndarray)
    shown = CellPCA(2, cell_shape=(3, 10, 10)).fit(x, callback=lambda progress: None)
    for model in (shown, BandPCA(2, band_size=1500).fit(x)):
        assert isinstance(model.components_, np.ndarray)


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {"overlap": 3},
        {"shared": True},
        {"shared": True, "overlap": 2},
        {"threshold": 0.9, "n_components": None},
        {"target_mse": 1e-3, "n_components": None, "shared": True, "data_range": (0, 255)},
    ],
)
@pytest.mark.usefixtures("small")
def test_cells_that_overlap_share_or_choose_components(options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    x, path = samples(9, dtype, (31, 53, 2)), str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(2, 7, 20, 2))
    given = {"n_components": 3, "cell_shape": 8} | options
    model, other = (make(path, run=Run(memory=80 * 2**20), **given) for make in (_on_disk, in_memory))
    assert isinstance(model.components_, da.Array)
    assert isinstance(other.components_, np.ndarray)
    for name in ("components_", "mean_", "explained_variance_", "total_variance_", "ranks_"):
        found, expected = np.asarray(getattr(model, name)), getattr(other, name)
        assert found.dtype == expected.dtype
        # The filter of an overlap is a product of matrices, which is rounded as its size says.
        atol = 1e-6 * np.abs(expected).max() if "overlap" in options else 0
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)
    expected = other.transform(x)
    atol = 1e-4 * np.abs(expected).max()
    model.save(tmp_path / "model.zarr")
    for one in (model, dpca.load(tmp_path / "model.zarr")):
        assert isinstance(one.components_, da.Array)
        np.testing.assert_allclose(one.transform(x), expected, atol=atol)
        np.testing.assert_allclose(one.transform(path), expected, atol=atol)
        np.testing.assert_allclose(one.inverse_transform(expected), other.inverse_transform(expected), atol=1e-3)
        np.testing.assert_allclose(one.component_maps(2), other.component_maps(2), atol=1e-5)
        assert one.report_numbers() == other.report_numbers()


@pytest.mark.usefixtures("small")
def test_a_model_on_disk_encodes(tmp_path: Path) -> None:
    x, options = samples(9, "uint8", (40, 48)), {"cell_shape": 8, "shared": True, "overlap": 2}
    stack = x, str(tmp_path / "x.zarr")
    zarr.create_array(stack[1], data=x, chunks=(9, 40, 48))
    for name, model in (("disk", CellPCA(4, **options).fit(x)), ("memory", in_memory(x, 4, **options))):
        model.save(tmp_path / f"{name}.zarr")
        encode_store(open_stack(stack[1]), tmp_path / f"{name}.zarr", tmp_path / f"{name}-codes.zarr", max_error=2)
        decoded = np.asarray(dpca.open_compressed(tmp_path / f"{name}-codes.zarr")[:])
        assert np.abs(decoded.astype(int) - x).max() <= 2


@pytest.mark.usefixtures("small")
def test_values_that_are_not_finite_end_the_fit() -> None:
    x = np.full((6, 20, 20), 1e300)
    x[::2] = -1e300
    with pytest.raises((DataError, PlanError)):
        CellPCA(2, cell_shape=10).fit(x)


@pytest.mark.usefixtures("small")
def test_tiny_constants_are_refused_as_in_memory() -> None:
    x = np.full((6, 20, 20), 1e-200)
    for fit in (in_memory, lambda *args, **options: CellPCA(2, **options).fit(x)):
        with pytest.raises(DataError, match="multiply"):
            fit(x, 2, cell_shape=10)


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
    with pytest.raises(StoreError, match="components"):
        CellPCA(2, cell_shape=10).fit(np.random.default_rng(0).normal(size=(6, 20, 20)))


def test_only_large_components_are_on_disk(tmp_path: Path) -> None:
    model = CellPCA(2, cell_shape=(3, 10, 10)).fit(samples(6, "float32"))
    assert isinstance(model.components_, np.ndarray)
    model.save(tmp_path / "m.zarr")
    facts = json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())
    assert "by_blocks" not in json.dumps(facts)

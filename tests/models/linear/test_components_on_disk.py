"""Components that are written to a store block by block: the same model as in memory, and nothing of it whole."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, StreamingPCA
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store
from dpca.models.linear import component_store, dual_solver
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.stack import open_stack
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.helpers.patterned import Stopped, patterned

SHAPE = (20, 24, 30)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all components of the dual form be on disk, in several shards."""
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 0)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**14)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of temporary stores, which other tests do not use at the same time."""
    folder = str(tmp_path / "own")
    os.mkdir(folder)
    monkeypatch.setattr(component_store, "private_folder", lambda: folder)
    return folder


def samples(n: int, dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return patterned(n, SHAPE, dtype, seed)


def in_memory(x: Any, k: Any = 3, **options: Any) -> PCA:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual_solver, "MOST_BYTES", 2**40)
        return PCA(k, solver="dual", **options).fit(x)


@pytest.mark.cases(2)
@pytest.mark.parametrize("chunks", [(1, *SHAPE), (2, 5, 12, 30), (9, 7, 5, 11)])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.usefixtures("small")
def test_it_is_the_model_in_memory(tmp_path: Path, chunks: tuple[int, ...], dtype: str, whiten: bool) -> None:
    x = samples(9, dtype)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    other, model = in_memory(x, whiten=whiten), PCA(3, solver="dual", whiten=whiten).fit(str(tmp_path / "x.zarr"))
    rows = model.components_.compute()
    signs = np.sign((rows * other.components_).sum(axis=1))
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(rows * signs[:, None], other.components_, **close)
    np.testing.assert_allclose(model.mean_.compute(), other.mean_, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-12)
    assert 0.999 < model.captured_bound_ <= 1
    assert (model.components_.dtype, model.mean_.dtype) == (other.components_.dtype, other.mean_.dtype)
    expected = other.transform(x)
    scale = np.abs(expected).max()
    for given in (x, str(tmp_path / "x.zarr"), da.from_array(x, chunks=(4, 20, 10, 30))):
        scores = model.transform(given)
        assert isinstance(scores, np.ndarray if given is x else da.Array)
        scores = np.asarray(scores)
        assert scores.dtype == expected.dtype
        np.testing.assert_allclose(scores * signs / scale, expected / scale, atol=2e-6)
        np.testing.assert_allclose(model.score_samples(given), other.score_samples(x), rtol=1e-4)
        assert model.score(given) == pytest.approx(other.score(x), rel=1e-6)
    for k in (1, 3):
        back = model.inverse_transform(scores[:, :k], k)
        np.testing.assert_allclose(back, other.inverse_transform(expected[:, :k], k), rtol=1e-4, atol=1e-3)
        lazy = model.inverse_transform(da.from_array(scores[:, :k], chunks=(2, 1)), k)
        assert isinstance(lazy, da.Array)
        np.testing.assert_allclose(lazy, back, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(model.basis_.encode(x), scores, atol=1e-5 * scale)
    np.testing.assert_allclose(model.basis_.decode(scores), back, rtol=1e-5, atol=1e-3)
    fields = model.to_xarray()
    assert fields["components"].chunks
    np.testing.assert_array_equal(fields["components"].values.reshape(3, -1), rows)


@pytest.mark.usefixtures("small")
def test_any_part_of_the_flat_view_is_that_of_the_array() -> None:
    model = PCA(3, solver="dual").fit(samples(6, "float32"))
    rows, whole, rng = model.components_, model.components_.compute(), np.random.default_rng(0)
    assert rows.shape == (3, 20 * 24 * 30)
    for _ in range(30):
        a, b = sorted(rng.integers(0, rows.shape[1], 2))
        for part in (slice(a, b), slice(a, b, 7), slice(b, a, -3), a):
            np.testing.assert_array_equal(rows[1:, part].compute(), whole[1:, part])
            np.testing.assert_array_equal(rows[1, part].compute(), whole[1, part])


@pytest.mark.usefixtures("small")
def test_shares_of_the_variance_and_all_components() -> None:
    x = samples(8, "float64")
    for k in (0.9, 0.999, None):
        other, model = in_memory(x, k), PCA(k, solver="dual").fit(x)
        # The last of all components has no variance, and completes a basis in memory only.
        assert model.n_components_ == (7 if k is None else other.n_components_)
        rows = model.components_.compute()
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-12)
        np.testing.assert_allclose(model.explained_variance_, other.explained_variance_[: len(rows)], rtol=1e-9)


@pytest.mark.usefixtures("small")
def test_rows_of_small_eigenvalues_are_orthonormal() -> None:
    """Their weights have rounding errors of the largest eigenvalue, which another pass removes."""
    rng = np.random.default_rng(1)
    left = np.linalg.qr(rng.normal(size=(12, 6)) - rng.normal(size=6))[0]
    right = np.linalg.qr(rng.normal(size=(20 * 24 * 30, 6)))[0]
    x = (left * 10.0 ** -np.arange(6)) @ right.T
    model = PCA(5, solver="dual").fit(x.reshape(12, *SHAPE))
    rows = model.components_.compute()
    assert model.n_passes_ == 3
    np.testing.assert_allclose(rows @ rows.T, np.eye(5), atol=1e-12)  # without the pass: 1e-9


@pytest.mark.usefixtures("small")
def test_more_components_than_directions_are_refused() -> None:
    x = samples(6, "float32")
    with pytest.raises(DataError, match="directions"):
        PCA(5, solver="dual").fit(x[[0, 0, 1, 1, 2, 2]])


@pytest.mark.usefixtures("small")
def test_a_temporary_store_goes_with_the_model(tmp_path: Path, own: str) -> None:
    def folders() -> set[str]:
        return {name for name in os.listdir(own) if name.startswith("components-")}

    before = folders()
    model = PCA(2, solver="dual").fit(samples(6, "float32"))
    (made,) = folders() - before
    assert os.stat(os.path.join(own, made)).st_mode & 0o077 == 0
    lazy, values = model.components_, model.components_.compute()
    model.save(tmp_path / "m.zarr")
    del model
    gc.collect()
    np.testing.assert_array_equal(lazy.compute(), values)  # a lazy array keeps it, too
    del lazy
    gc.collect()
    assert made not in folders()
    np.testing.assert_array_equal(PCA.load(tmp_path / "m.zarr").components_.compute(), values)


@pytest.mark.usefixtures("small")
def test_folders_of_killed_programs_are_removed(own: str) -> None:
    kept = component_store.TemporaryFolder()
    dead = os.path.join(own, "components-dead")
    os.makedirs(os.path.join(dead, "mean"), exist_ok=True)
    open(os.path.join(dead, "lock"), "wb").close()
    component_store.TemporaryFolder()
    assert not os.path.exists(dead)
    assert os.path.exists(kept.path)


@pytest.mark.usefixtures("small")
def test_saving_reads_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PCA(3, solver="dual").fit(samples(6, "float32"))
    x = samples(6, "float32")
    x[0, 0, 0, 0] += 1e-3
    other = PCA(3, solver="dual").fit(x)
    assert other.basis_.fingerprint() != model.basis_.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(ArrayOnDisk, "__getitem__", None)
        model.save(tmp_path / "a.zarr")
    np.testing.assert_array_equal(PCA.load(tmp_path / "a.zarr").components_.compute(), model.components_.compute())
    with pytest.raises(StoreError, match="other"):
        other.save(tmp_path / "a.zarr")
    fewer = model.basis_.leading(2)  # has no checksums of its own: its values are hashed
    assert fewer.fingerprint() == PCA.load(tmp_path / "a.zarr").basis_.leading(2).fingerprint()
    assert fewer.fingerprint() != model.basis_.fingerprint()


@pytest.mark.usefixtures("small")
def test_a_stored_model_is_that_in_memory(tmp_path: Path) -> None:
    model = StreamingPCA(2, memory_budget=34 * 2**20).fit(np.repeat(samples(6, "float32"), 40, axis=1))
    assert model.method_ == "dual"
    for folder in ("a.zarr", "b.zarr"):
        model.save(tmp_path / folder)
    loaded = StreamingPCA.load(tmp_path / "a.zarr")
    assert loaded.basis_.fingerprint() == model.basis_.fingerprint()
    assert isinstance(loaded.components_, da.Array)
    loaded.save(tmp_path / "a.zarr")  # the same content: left as it is
    shard = next(path for path in (tmp_path / "b.zarr" / "components" / "c").rglob("*") if path.is_file())
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(StoreError):
        StreamingPCA.load(tmp_path / "b.zarr").components_.compute()


@pytest.mark.usefixtures("small")
def test_a_job_writes_them_into_its_store(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=samples(6, "uint8"), chunks=(1, 5, 24, 30))
    fitted = fit_store(open_stack(tmp_path / "x.zarr"), tmp_path / "m.zarr", PCA(2, solver="dual", random_state=0))
    scores = fitted.model.transform(str(tmp_path / "x.zarr")).compute()
    np.testing.assert_array_equal(PCA.load(tmp_path / "m.zarr").transform(str(tmp_path / "x.zarr")).compute(), scores)
    assert sorted(os.listdir(tmp_path)) == ["m.zarr", "x.zarr"]


@pytest.mark.usefixtures("small")
def test_an_interrupted_fit_resumes_with_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.repeat(samples(6, "float32"), 40, axis=1)
    # Samples in this process: a cluster of another test could run the tasks, and they would not be stopped.
    run = Run(threads=1, memory=32 * 2**20, checkpoints=Checkpoints(str(tmp_path / "kept")))
    expected = PCA(2, solver="dual").fit(x, run=Run(threads=1, memory=32 * 2**20))
    written: list[int] = []
    write = component_store.ComponentStore.write

    def failing(store: Any, part: int, result: Any) -> Any:
        written.append(part)
        if len(written) == 2:
            raise Stopped
        return write(store, part, result)

    monkeypatch.setattr(component_store.ComponentStore, "write", failing)
    with pytest.raises(Stopped):
        PCA(2, solver="dual").fit(x, run=run)
    model = PCA(2, solver="dual").fit(x, run=run)
    n_blocks = max(written) + 1
    assert set(written) == set(range(n_blocks))
    assert len(written) < 2 * n_blocks + 1  # what was finished is not repeated, apart from one group
    np.testing.assert_array_equal(model.components_.compute(), expected.components_.compute())


@pytest.mark.usefixtures("small")
def test_a_rehearsal_writes_nothing(tmp_path: Path, own: str) -> None:
    before = os.listdir(own)
    with rehearsing(Workers(1, 1, 10**9), str(tmp_path)) as found:
        PCA(3, solver="dual").fit(samples(6, "float32"))
    assert len(found.costs) == 2
    assert os.listdir(own) == before


@pytest.mark.usefixtures("small")
def test_workers_write_the_same(tmp_path: Path, hidden_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**20)
    x = np.repeat(samples(6, "uint8"), 150, axis=1)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, 10, 24, 30))
    here = PCA(2, solver="dual").fit(str(tmp_path / "x.zarr"))
    there = PCA(2, solver="dual").fit(str(tmp_path / "x.zarr"), run=Run(client=hidden_cluster, memory=44 * 2**20))
    assert len(there.fit_report_.plan.segments) > 1
    np.testing.assert_array_equal(there.components_.compute(), here.components_.compute())
    np.testing.assert_array_equal(there.transform(str(tmp_path / "x.zarr")), here.transform(str(tmp_path / "x.zarr")))


def test_only_large_components_are_on_disk() -> None:
    model = PCA(2, solver="dual").fit(samples(6, "float32"))
    assert isinstance(model.components_, np.ndarray)
    assert as_source(samples(6, "float32")).shape[0] == 6

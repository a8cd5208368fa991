"""A basis that fits no task is spread over blocks of attributes, and nobody notices but for the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import Progress, StreamingPCA
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.folds.spread import spread_fold
from dpca.engine.sources.source import as_source
from dpca.models.base.passes import Passes
from dpca.models.linear import component_store
from dpca.models.streaming import spread_store
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.representation.on_disk import ArrayOnDisk
from dpca.rules.covariance.covariance_product import RayleighRitz
from dpca.rules.covariance.measured import NextIterate, refined
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

SHAPE = (40, 60, 50)
N = 160
# The Gram matrix of all samples is no substitute then.
OPTIONS: dict[str, Any] = {"n_components": 4, "random_state": 0, "oversampling": 20, "batch_size": 40}
NOTE = "spread over 2 blocks"


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(4, *SHAPE)) * np.array([9, 6, 4, 2])[:, None, None, None]
    return (5 + np.tensordot(rng.normal(size=(N, 4)), patterns, 1) + rng.normal(size=(N, *SHAPE))).astype("f4")


@pytest.fixture(scope="module")
def store(x: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("store") / "x.zarr")
    zarr.create_array(path, data=x, chunks=(10, 20, 60, 50))
    return path


@pytest.fixture(scope="module")
def enough(store: str) -> StreamingPCA:
    return StreamingPCA(**OPTIONS).fit(store, run=Run(threads=1))


def least_memory(store: Any, **options: Any) -> int:
    """The memory that a single task needs."""
    with pytest.raises(PlanError) as refused:
        StreamingPCA(**OPTIONS | options).fit(store, run=Run(threads=1, memory=10**7))
    return int(str(refused.value).split("at least ")[1].split(" MB")[0].replace(",", "")) * 10**6


def spread_run(store: Any, share: float = 0.8, **options: Any) -> Run:
    return Run(threads=2, memory=int(share * least_memory(store, **options)))


def assert_alike(model: StreamingPCA, other: StreamingPCA, bound: float = 2e-4) -> None:
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "total_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(other, name), rtol=1e-5)
    np.testing.assert_allclose(model.captured_bound_, other.captured_bound_, atol=bound)
    for name in (
        "captured_estimate_",
        "captured_estimate_error_",
        "angle_moved_",
        "variance_moved_",
    ):
        np.testing.assert_allclose(getattr(model, name), getattr(other, name), atol=2e-4)
    np.testing.assert_allclose(model.components_, other.components_, atol=1e-4)
    np.testing.assert_allclose(model.mean_, other.mean_, atol=1e-5)
    assert (model.method_, model.n_samples_seen_) == (other.method_, other.n_samples_seen_)


def test_a_basis_for_two_tasks_is_that_of_one(store: str, enough: StreamingPCA, tmp_path: Path) -> None:
    run = spread_run(store)
    model = StreamingPCA(**OPTIONS).fit(store, run=run)
    assert NOTE in model.fit_report_.note
    assert run.memory is not None
    assert model.fit_report_.plan.task_bytes <= run.memory
    assert not enough.fit_report_.note
    assert_alike(model, enough)
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(StreamingPCA.load(tmp_path / "m.zarr").components_, model.components_)


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"center": False}, {"forgetting": 0.99}, {"execution": "chain"}]
)
def test_with_other_parameters_too(store: str, options: dict[str, Any]) -> None:
    expected = StreamingPCA(**OPTIONS | options).fit(store, run=Run(threads=1))
    model = StreamingPCA(**OPTIONS | options).fit(store, run=spread_run(store, 0.85, **options))
    assert NOTE in model.fit_report_.note
    assert_alike(model, expected)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8"])
def test_arrays_of_other_types(x: np.ndarray, dtype: str) -> None:
    values = np.clip(x * 3 + 100, 0, 255).astype(dtype)
    expected = StreamingPCA(**OPTIONS).fit(values, run=Run(threads=1))
    model = StreamingPCA(**OPTIONS).fit(values, run=spread_run(values, 0.85))
    assert NOTE in model.fit_report_.note
    assert model.components_.dtype == expected.components_.dtype
    # In one task, products of bytes are exact, and the bound is higher.
    assert_alike(model, expected, 5e-4 if dtype == "u1" else 2e-4)


def test_callbacks_and_budgets(store: str) -> None:
    seen: list[Progress] = []
    run = spread_run(store, 0.95)
    StreamingPCA(**OPTIONS).fit(store, run=run, callback=seen.append)
    assert [progress.n_samples_seen for progress in seen][-2:] == [64, N]
    assert NOTE in seen[0].model.fit_report_.note
    model = StreamingPCA(**OPTIONS).fit(store, run=run, max_samples=80)
    assert model.n_samples_seen_ == 80
    assert_alike(model, StreamingPCA(**OPTIONS).fit(store, run=Run(threads=1), max_samples=80))


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all components of a spread basis be on disk, in several shards."""
    monkeypatch.setattr(spread_store, "MOST_BYTES", 0)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**16)


@pytest.mark.parametrize("kept", [False, True])
def test_components_on_disk_are_those_in_memory(
    store: str, x: np.ndarray, tmp_path: Path, kept: bool, request: pytest.FixtureRequest
) -> None:
    run = spread_run(store)
    expected = StreamingPCA(**OPTIONS).fit(store, run=run)
    request.getfixturevalue("stored")
    run = Run(threads=2, memory=run.memory, checkpoints=Checkpoints(str(tmp_path / "kept")) if kept else None)
    model = StreamingPCA(**OPTIONS).fit(store, run=run)
    assert NOTE in model.fit_report_.note
    assert isinstance(model.components_, da.Array)
    # This process plans no component.
    assert model.fit_report_.plan.caller_bytes < expected.components_.nbytes / len(expected.components_)
    for name in ("components_", "mean_", "explained_variance_", "total_variance_", "captured_bound_", "angle_moved_"):
        np.testing.assert_array_equal(np.asarray(getattr(model, name)), getattr(expected, name))
    scale = np.abs(scores := expected.transform(x[:9])).max()
    np.testing.assert_allclose(np.asarray(model.transform(x[:9])) / scale, scores / scale, atol=1e-5)
    assert (tmp_path / "kept").exists() == kept
    model.save(tmp_path / "m.zarr")
    del model
    np.testing.assert_array_equal(StreamingPCA.load(tmp_path / "m.zarr").components_.compute(), expected.components_)


@pytest.mark.usefixtures("stored")
def test_workers_write_their_blocks(store: str, enough: StreamingPCA, hidden_cluster: Any) -> None:
    here = spread_run(store)
    model = StreamingPCA(**OPTIONS).fit(store, run=Run(client=hidden_cluster, memory=here.memory))
    assert NOTE in model.fit_report_.note
    assert isinstance(model.components_, da.Array)
    np.testing.assert_array_equal(model.components_, StreamingPCA(**OPTIONS).fit(store, run=here).components_)
    np.testing.assert_allclose(model.components_, enough.components_, atol=1e-4)


@pytest.mark.usefixtures("stored")
def test_each_result_so_far_has_its_own_store(store: str, enough: StreamingPCA, tmp_path: Path) -> None:
    """Also if the last one is in the folder of the checkpoints."""
    seen: list[Progress] = []
    run = replace(spread_run(store, 0.95), checkpoints=Checkpoints(str(tmp_path / "kept")))
    model = StreamingPCA(**OPTIONS).fit(store, run=run, callback=seen.append)
    first = seen[0].model
    assert first.n_samples_seen_ < N
    np.testing.assert_allclose(model.components_, enough.components_, atol=1e-4)
    part = StreamingPCA(**OPTIONS).fit(store, run=spread_run(store, 0.95), max_samples=first.n_samples_seen_)
    np.testing.assert_allclose(first.components_, part.components_, atol=1e-6)
    assert np.abs(first.components_.compute() - model.components_.compute()).max() > 1e-4


@pytest.mark.usefixtures("stored")
def test_a_run_that_ended_while_blocks_were_written_goes_on(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some shards of each block are on disk then."""
    calm = StreamingPCA(**OPTIONS).fit(store, run=spread_run(store))
    run, write, written = spread_run(store), component_store.write_shard, []

    def stopped(array: Any, start: Any, values: Any) -> None:
        if len(written) >= 3:
            raise OSError("the disk is gone")
        write(array, start, values)
        written.append(start)

    monkeypatch.setattr(component_store, "write_shard", stopped)
    run = replace(run, checkpoints=Checkpoints(str(tmp_path / "kept")))
    with pytest.raises(OSError, match="gone"):
        StreamingPCA(**OPTIONS).fit(store, run=run)
    assert 3 <= len(written) <= 4
    monkeypatch.setattr(component_store, "write_shard", write)
    model = StreamingPCA(**OPTIONS).fit(store, run=run)
    np.testing.assert_array_equal(np.asarray(model.components_), np.asarray(calm.components_))
    np.testing.assert_array_equal(np.asarray(model.mean_), np.asarray(calm.mean_))


@pytest.mark.usefixtures("stored")
def test_a_rehearsal_writes_no_components(store: str, tmp_path: Path) -> None:
    run = spread_run(store)
    assert run.memory is not None
    with rehearsing(Workers(2, 2, run.memory), str(tmp_path)) as found:
        model = StreamingPCA(**OPTIONS).fit(store, run=run)
    assert not isinstance(model.components_, ArrayOnDisk | da.Array)
    assert (model.components_.shape, model.components_.strides) == ((4, np.prod(SHAPE)), (0, 0))
    (cost,) = found.costs
    assert cost.planned(Workers(2, 4, run.memory)).caller_bytes < 8 * np.prod(SHAPE)


def test_components_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    writer = component_store.ComponentStore(str(tmp_path), CellGrid((4,), (2,)), 1, np.dtype("f4"))
    writer.create()
    assert writer.write_checked(1, np.ones((1, 2), "f4"), np.array([1.0, -3.0])) == 3
    with pytest.raises(DataError, match="finite"):
        writer.write_checked(0, np.full((1, 2), np.nan, "f4"), np.zeros(2))
    np.testing.assert_array_equal(writer.arrays(None)["components"][:, 2:], [[1, 1]])
    with pytest.raises(StoreError, match="missing"):
        writer.arrays(None)["components"][:]


def test_a_plan_knows_it(store: str) -> None:
    source, run = as_source(store), spread_run(store)
    basis, known = StreamingPCA(**OPTIONS).plan_fit(source, ("z", "y", "x"), run)
    assert known
    assert basis.score_shape == (4,)
    with pytest.raises(PlanError, match="workers"):
        StreamingPCA(**OPTIONS).plan_fit(source, ("z", "y", "x"), Run(threads=2, memory=run.memory // 3))  # type: ignore[operator]


def test_a_rehearsal_knows_it(store: str, tmp_path: Path) -> None:
    run = spread_run(store)
    assert run.memory is not None
    with rehearsing(Workers(2, 2, run.memory), str(tmp_path)) as found:
        model = StreamingPCA(**OPTIONS).fit(store, run=run)
    assert model.components_.shape == (4, np.prod(SHAPE))
    (cost,) = found.costs
    assert cost.n_samples == N
    assert min(cost.reading, cost.folding, cost.finishing) > 0
    two, four = (cost.planned(Workers(n, 4, run.memory)) for n in (2, 4))
    assert (len(two.groups), len(four.groups)) == (2, 4)
    assert four.task_bytes < two.task_bytes <= run.memory
    with pytest.raises(PlanError, match="workers"):
        cost.planned(Workers(1, 1, run.memory))


@pytest.mark.parametrize(("center", "n_passes"), [(True, 3), (False, 2)])
def test_further_passes_are_those_of_one_task(store: str, x: np.ndarray, center: bool, n_passes: int) -> None:
    """Their results are exact, too: those of the Gram matrix of the samples."""
    options = {**OPTIONS, "center": center, "n_passes": n_passes}
    expected = StreamingPCA(**options).fit(store, run=Run(threads=1))
    model = StreamingPCA(**options).fit(store, run=spread_run(store))
    assert NOTE in model.fit_report_.note
    assert_alike(model, expected)
    assert_same_residuals(model, expected)
    rows = x.reshape(N, -1).astype(float)
    rows -= rows.mean(axis=0) * center
    values, vectors = np.linalg.eigh(rows @ rows.T)
    np.testing.assert_allclose(model.explained_variance_, values[:-5:-1] / (N - 1), rtol=1e-6)
    exact = vectors[:, :-5:-1].T @ rows / np.sqrt(values[:-5:-1, None])
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * exact, axis=1)), 1, atol=1e-6)
    assert 0.999 < model.captured_bound_ <= 1


def test_workers_have_blocks_of_further_passes(store: str, hidden_cluster: Any) -> None:
    here = spread_run(store)
    model = StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=Run(client=hidden_cluster, memory=here.memory))
    assert_alike(model, StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=here))


def test_a_further_pass_over_blocks_is_that_over_whole_samples() -> None:
    """Of a rough basis: residuals are large, and a batch has more than one group of samples."""
    rng, shape = np.random.default_rng(1), (40, 9, 10)
    patterns = rng.normal(size=(5, 3600))
    samples = 0.3 * rng.normal(size=(N, 5)) * [9, 7, 5, 3, 2] @ patterns + rng.normal(size=(N, 3600))
    source = as_source(samples.reshape(N, *shape).astype("f4"))
    basis = np.linalg.qr((patterns + 0.5 * rng.normal(size=patterns.shape)).T)[0].T.astype("f4")
    rule = RayleighRitz(basis, rng.normal(size=3600), n_components=3)
    (product,), report = fold(rule, source, Whole(shape), run=Run(threads=1))
    assert report.plan.batch_rows == N
    expected = refined(product, 3, "f4")
    found, spread = spread_fold(NextIterate(rule), source, run=Run(threads=2))
    assert (len(spread.plan.groups), spread.plan.batch_rows) == (2, N)
    assert found.keys() == expected.keys()
    assert expected["residual_norms"].min() > 0.1 * expected["explained_variance"][0]
    assert 0 < expected["captured_bound"] < 1
    for name in found.keys() - {"components", "directions"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["components"], expected["components"], atol=1e-6)
    # The signs of eigenvectors are arbitrary.
    np.testing.assert_allclose(np.abs(found["directions"] @ expected["directions"].T), np.eye(5), atol=2e-6)


def assert_same_residuals(model: StreamingPCA, other: StreamingPCA) -> None:
    scale = other.explained_variance_[0]
    np.testing.assert_allclose(model.residual_norms_ / scale, other.residual_norms_ / scale, atol=2e-6)


def test_rows_without_variance_are_completed() -> None:
    """Two patterns have no third direction."""
    rng, shape = np.random.default_rng(2), (40, 9, 10)
    basis = np.linalg.qr(rng.normal(size=(3600, 4)))[0].T
    source = as_source((rng.normal(size=(N, 2)) @ basis[:2]).reshape(N, *shape))
    rule = RayleighRitz(basis, np.zeros(3600), n_components=3)
    found, _ = spread_fold(NextIterate(rule), source, run=Run(threads=2))
    np.testing.assert_allclose(found["directions"] @ found["directions"].T, np.eye(4), atol=1e-12)
    expected = refined(fold(rule, source, Whole(shape))[0][0], 3, "f8")
    np.testing.assert_allclose(found["components"][:2], expected["components"][:2], atol=1e-9)
    np.testing.assert_allclose(found["explained_variance"], expected["explained_variance"], atol=1e-9)


def test_passes_that_do_not_fit_are_refused_before_the_first(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, run = as_source(store), spread_run(store, 0.4)
    monkeypatch.setattr(Passes, "over", lambda *_, **__: pytest.fail("a pass began"))
    with pytest.raises(PlanError, match="blocks"):
        StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=run)
    with pytest.raises(PlanError, match="blocks"):
        StreamingPCA(**OPTIONS, n_passes=2).plan_fit(source, ("z", "y", "x"), run)


def test_an_interrupted_further_pass_resumes(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass is not repeated."""
    calm = StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=spread_run(store))
    run = replace(spread_run(store), checkpoints=Checkpoints(str(tmp_path / "kept")))
    with monkeypatch.context() as patched, pytest.raises(OSError, match="gone"):
        patched.setattr(NextIterate, "finish", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=run)
    model = StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=run)
    np.testing.assert_array_equal(model.components_, calm.components_)
    np.testing.assert_array_equal(model.explained_variance_, calm.explained_variance_)


def test_a_rehearsal_knows_further_passes(store: str, tmp_path: Path) -> None:
    run = spread_run(store)
    assert run.memory is not None
    with rehearsing(Workers(2, 2, run.memory), str(tmp_path)) as found:
        model = StreamingPCA(**OPTIONS, n_passes=2).fit(store, run=run)
    assert model.components_.shape == (4, np.prod(SHAPE))
    first, second = (cost.planned(Workers(2, 2, run.memory)) for cost in found.costs)
    assert len(first.groups) == len(second.groups) == 2
    assert max(first.task_bytes, second.task_bytes) <= run.memory


def kept_run(source: Any) -> Run:
    return spread_run(source, 0.85, keep_state=True)


@pytest.mark.usefixtures("stored")
def test_a_state_is_kept_in_memory_and_merged(x: np.ndarray, enough: StreamingPCA) -> None:
    """A state has arrays of its own for attributes, and samples for the estimate of the certificate."""
    halves = [StreamingPCA(**OPTIONS, keep_state=True).fit(part, run=kept_run(part)) for part in (x[:80], x[80:])]
    assert all(NOTE in model.fit_report_.note for model in halves)
    whole = [StreamingPCA(**OPTIONS, keep_state=True).fit(part, run=Run(threads=1)) for part in (x[:80], x[80:])]
    for model, other in zip(halves, whole, strict=True):
        assert isinstance(model.components_, np.ndarray)
        assert_alike(model, other)
    merged = halves[0].merge(halves[1])
    assert_alike(merged, whole[0].merge(whole[1]))
    np.testing.assert_allclose(merged.explained_variance_, enough.explained_variance_, rtol=1e-3)
    assert merged.n_samples_seen_ == N


def test_a_kept_state_goes_on(store: str, x: np.ndarray, tmp_path: Path, hidden_cluster: Any) -> None:
    """Also that of blocks on workers, after it was saved."""
    run = Run(client=hidden_cluster, memory=kept_run(store).memory)
    model = StreamingPCA(**OPTIONS, keep_state=True).fit(store, run=run)
    assert NOTE in model.fit_report_.note
    expected = StreamingPCA(**OPTIONS, keep_state=True).fit(store, run=Run(threads=1))
    model.save(tmp_path / "m.zarr")
    later, more = StreamingPCA.load(tmp_path / "m.zarr"), x[::-1][:40] * 2
    assert_alike(later.partial_fit(more), expected.partial_fit(more))


def test_results_so_far_have_their_own_state(x: np.ndarray) -> None:
    seen: list[Progress] = []
    run = spread_run(x, 0.97, keep_state=True)
    model = StreamingPCA(**OPTIONS, keep_state=True).fit(x, run=run, callback=seen.append)
    first = seen[0].model
    first.partial_fit(x[first.n_samples_seen_ :])
    assert first.n_samples_seen_ == N
    # The last batch before a result is a short one.
    np.testing.assert_allclose(first.explained_variance_, model.explained_variance_, rtol=1e-3)


def test_refusals_name_the_ways_out(store: str) -> None:
    run = spread_run(store)
    with pytest.raises(PlanError, match="threads"):
        StreamingPCA(**OPTIONS).fit(store, run=Run(threads=1, memory=run.memory))
    with pytest.raises(PlanError, match="incremental-svd"):
        StreamingPCA(9, method="oja", shuffle=True).fit(store, run=Run(threads=2, memory=30 * 10**6))
    with pytest.raises(PlanError, match="incremental-svd"):
        StreamingPCA(9, method="covariance").fit(store, run=Run(threads=2, memory=30 * 10**6))

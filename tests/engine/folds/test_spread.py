"""A state that is spread over blocks of attributes gives what a chain of whole samples gives."""

from __future__ import annotations

import gc
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca.engine.folds import block_holder, spread
from dpca.engine.folds.callbacks import FoldProgress, Marks
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.spread import plan_spread, spread_fold
from dpca.engine.sources.source import as_source
from dpca.partition.whole import Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.watched import Watched, moved
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.incremental import incremental_svd, nystrom
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


def rule_of(k: int, size: int, n: int, **options: Any) -> Any:
    """The rule of a fit, with its certificates."""
    rule = Watched(IncrementalSVD(k, **options), n)
    return InBatches(rule if options.get("forgetting", 1) < 1 else Sampled(rule), size, chain=True)


def chained(rule: Any, source: Any) -> dict[str, np.ndarray]:
    (found,), _ = fold(rule, source, Whole(tuple(source.shape[1:])), run=Run(threads=1))
    return found


def samples(rng: np.random.Generator, n: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Samples with variances that decrease by powers of 2, so that components are well separated."""
    d = math.prod(shape)
    rank = min(n, d, 8)
    x = rng.normal(size=(n, rank)) @ (2.0 ** -np.arange(rank)[:, None] * rng.normal(size=(rank, d)))
    x += 0.01 * rng.normal(size=(n, d)) + rng.normal(size=d)
    if dtype[0] in "iu":
        info = np.iinfo(dtype)
        x = np.clip(np.round(10 * x + (100 if dtype[0] == "u" else 0)), info.min, info.max)
    return x.reshape(n, *shape).astype(dtype)


def assert_same(found: dict[str, Any], expected: dict[str, Any], rtol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape, name
    scale = float(expected["total_variance"])
    for name in ("explained_variance", "total_variance", "kept_energy"):
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(
        found["mean"], expected["mean"], rtol=rtol, atol=rtol * (1 + abs(expected["mean"]).max())
    )
    for name in ("captured_bound", "variance_moved"):
        np.testing.assert_allclose(found[name], expected[name], atol=100 * rtol)
    rows = found["components"].astype(float)
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=10 * rtol)
    if scale:
        _, share = moved(expected["components"], found["components"], expected["explained_variance"])
        assert share < rtol


@pytest.mark.cases(12)
@pytest.mark.parametrize("seed", range(60))
def test_any_shape_in_any_blocks_is_a_chain(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(s) for s in rng.integers(1, 12, rng.integers(1, 4)))
    shape = shape if math.prod(shape) > 1 else (5,)
    n = int(rng.choice([1, 2, 7, 40, 150]))
    dtype = str(rng.choice(["u1", "i2", "u2", "f4", "f8", "i4"]))
    x = samples(rng, n, shape, dtype)
    chunks = tuple(int(rng.integers(1, s + 1)) for s in x.shape)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    source = as_source(str(tmp_path / "x.zarr"))
    size, over = int(rng.choice([1, 5, 16, 64])), int(rng.choice([0, 3, 60]))
    k = int(rng.integers(1, min(6, math.prod(shape)) + 1))
    rule = rule_of(k, size, n, oversampling=over, center=bool(rng.random() < 0.8))
    found, report = spread_fold(rule, source, run=Run(threads=int(rng.integers(2, 6))))
    assert len(report.plan.groups) > 1
    assert_same(found, chained(rule, source), 1e-10 if dtype in ("f8", "i4") else 2e-5)


@pytest.mark.parametrize("seed", range(6))
def test_few_samples_are_their_svd(seed: int) -> None:
    """Up to the number of directions that it keeps, the rule is exact."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 7, 11 + seed)) * rng.exponential(size=(7, 11 + seed))
    found, _ = spread_fold(rule_of(5, 8, 30), as_source(x), run=Run(threads=2 + seed))
    exact = x.reshape(30, -1)
    _, values, rows = np.linalg.svd(exact - exact.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(found["explained_variance"], values[:5] ** 2 / 29, rtol=1e-6)
    assert np.linalg.svd(found["components"] @ rows[:5].T, compute_uv=False).min() > 1 - 1e-6
    np.testing.assert_allclose(found["mean"], exact.mean(axis=0), atol=1e-12)
    assert 0.99 < found["captured_bound"] <= 1


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_squares_out_of_range_are_scaled_by_the_largest_value_of_all_blocks(scale: float) -> None:
    x = (samples(np.random.default_rng(0), 40, (6, 5), "f4") * np.float32(scale)).astype("f4")
    x[:, :3] *= np.float32(0.01)  # the blocks alone would be scaled otherwise
    rule = rule_of(3, 16, 40)
    found, expected = spread_fold(rule, as_source(x), run=Run(threads=2))[0], chained(rule, as_source(x))
    np.testing.assert_allclose(found["explained_variance"], expected["explained_variance"], rtol=1e-5)
    np.testing.assert_allclose(found["components"], expected["components"], atol=1e-4)


@pytest.mark.parametrize("kind", ["constant", "rank 2", "dark block"])
def test_less_variance_than_components(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = np.full((30, 4, 6), 7.0, "f4")
    if kind == "rank 2":
        x += (rng.normal(size=(30, 2)) @ rng.normal(size=(2, 24))).reshape(30, 4, 6).astype("f4")
    if kind == "dark block":
        x[:, 2:] = rng.normal(size=(30, 2, 6))
    rule = rule_of(4, 8, 30)
    assert_same(spread_fold(rule, as_source(x), run=Run(threads=3))[0], chained(rule, as_source(x)), 2e-5)


def test_a_weighted_stream() -> None:
    x = samples(np.random.default_rng(0), 90, (9, 8), "f4")
    rule = rule_of(3, 30, 90, forgetting=0.97)
    assert_same(spread_fold(rule, as_source(x), run=Run(threads=4))[0], chained(rule, as_source(x)), 2e-5)


def test_certificates_are_those_of_a_chain() -> None:
    """More samples than are retained for the estimate: the same ones are drawn, whatever the blocks."""
    x = np.random.default_rng(2).normal(size=(900, 12, 10)) * np.linspace(1, 2, 10)
    rule = rule_of(3, 40, 900, oversampling=2)
    found, expected = spread_fold(rule, as_source(x), run=Run(threads=3))[0], chained(rule, as_source(x))
    for name in ("captured_bound", "captured_estimate", "captured_estimate_error", "angle_moved", "variance_moved"):
        assert 0 < expected[name] < 1
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_large_batches_take_the_step_without_the_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    step = IncrementalSVD._nystrom_step

    def counted(self: Any, state: Any, batch: Any, kernel: Any) -> bool:
        taken.append(step(self, state, batch, kernel))
        return taken[-1]

    monkeypatch.setattr(IncrementalSVD, "_nystrom_step", counted)
    x = samples(np.random.default_rng(1), 900, (20, 30), "f4")
    rule = rule_of(3, 300, 900, oversampling=20)
    found, _ = spread_fold(rule, as_source(x), run=Run(threads=3))
    assert sum(taken) >= 3
    assert_same(found, chained(rule, as_source(x)), 2e-5)


def test_results_do_not_depend_on_threads_that_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are added in the order of the blocks."""
    x = samples(np.random.default_rng(0), 60, (30, 10), "f4")
    rule = rule_of(3, 10, 60)
    first, _ = spread_fold(rule, as_source(x), run=Run(threads=3))
    ask = block_holder._Exchange._ask

    def late(self: Any, kind: str, value: Any) -> Any:
        time.sleep(0.002 * (3 - self.index))
        return ask(self, kind, value)

    monkeypatch.setattr(block_holder._Exchange, "_ask", late)
    second, _ = spread_fold(rule, as_source(x), run=Run(threads=3))
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


@pytest.mark.parametrize("size", [20, 300])
def test_eigenproblems_are_solved_in_one_block(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of another kind may find other eigenvectors, and a basis turned by both would be neither."""
    solved: set[str] = set()

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            solved.add(threading.current_thread().name)
            return function(*arguments, **options)

        return call

    for module, name in ((incremental_svd, "truncate"), (nystrom, "truncate"), (nystrom, "_factored")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    x = samples(np.random.default_rng(1), 900, (20, 30), "f4")
    spread_fold(rule_of(3, size, 900, oversampling=20), as_source(x), run=Run(threads=3))
    assert solved == {"block-0"}


@pytest.mark.parametrize("place", [(17, 0), (17, 3)])
def test_a_value_that_is_not_finite_is_named(place: tuple[int, int]) -> None:
    x = samples(np.random.default_rng(0), 40, (4, 6), "f4")
    x[place] = np.nan
    with pytest.raises(DataError, match="17"):
        spread_fold(rule_of(2, 8, 40), as_source(x), run=Run(threads=2))
    assert_no_threads_left()


def assert_no_threads_left() -> None:
    for _ in range(200):
        gc.collect()
        if not any(thread.name.startswith("block-") for thread in threading.enumerate()):
            return
        time.sleep(0.01)
    raise AssertionError([thread.name for thread in threading.enumerate()])


def test_threads_end_with_the_fold() -> None:
    x = samples(np.random.default_rng(0), 40, (4, 6), "f4")
    spread_fold(rule_of(2, 8, 40), as_source(x), run=Run(threads=2))
    assert_no_threads_left()


def test_callbacks_receive_the_result_so_far_and_change_nothing() -> None:
    x = samples(np.random.default_rng(0), 90, (9, 8), "f4")
    rule, seen = rule_of(3, 16, 90), {}

    def look(progress: FoldProgress) -> None:
        ((found),) = progress.states()
        seen[progress.n_samples] = found

    found, _ = spread_fold(rule, as_source(x), run=Run(threads=3), callback=Marks([20, 57], look))
    assert list(seen) == [20, 57]
    for n, so_far in seen.items():
        assert_same(so_far, chained(rule, as_source(x[:n])), 2e-5)
    for name, value in spread_fold(rule, as_source(x), run=Run(threads=3))[0].items():
        np.testing.assert_array_equal(found[name], value)


class StopError(Exception):
    """Ends a fold from outside."""


@pytest.mark.parametrize("damage", ["none", "newest block", "newest mark", "all"])
def test_an_interrupted_fold_resumes_with_the_same_bytes(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = samples(np.random.default_rng(0), 90, (9, 8), "f4")
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 9, 8))
    source, rule = as_source(str(tmp_path / "x.zarr")), rule_of(3, 16, 90)
    calm, _ = spread_fold(rule, source, run=Run(threads=3))
    monkeypatch.setattr(spread, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(spread, "_READ_FOR_EACH", 0)
    monkeypatch.setattr(InBatches, "batch_rows", lambda rule, dtype: 20)
    run = Run(threads=3, checkpoints=Checkpoints(str(tmp_path / "kept")))

    def stop(progress: FoldProgress) -> None:
        raise StopError

    with pytest.raises(StopError):
        spread_fold(rule, source, run=run, callback=Marks([50], stop))
    kept = {path.name: path for path in (tmp_path / "kept").rglob("*.npz")}
    newest = max((0, 1), key=lambda turn: kept[f"all-{turn}.npz"].stat().st_mtime_ns)
    if damage == "newest block":
        kept[f"block-000001-{newest}.npz"].write_bytes(b"")
    elif damage == "newest mark":
        kept[f"all-{newest}.npz"].unlink()
    elif damage == "all":
        for path in kept.values():
            path.write_bytes(path.read_bytes()[:100])
    starts: list[int] = []
    parts = block_holder.GroupTask.parts
    monkeypatch.setattr(
        block_holder.GroupTask,
        "parts",
        lambda self, source, span: (starts.append(span[0]), parts(self, source, span))[1],
    )
    found, _ = spread_fold(rule, source, run=run)
    assert min(starts) == {"none": 50, "all": 0}.get(damage, 40)
    for name, value in calm.items():
        np.testing.assert_array_equal(found[name], value)
    assert not list((tmp_path / "kept").rglob("*.npz"))


def test_checkpoints_of_blocks_that_differ_are_not_mixed(tmp_path: Path) -> None:
    """A block that was kept for other samples than the mark says does not count."""
    x = samples(np.random.default_rng(0), 60, (9, 8), "f4")
    source, rule = as_source(x), rule_of(3, 16, 60)
    run = Run(threads=2, checkpoints=Checkpoints(str(tmp_path / "kept")))

    def stop(progress: FoldProgress) -> None:
        raise StopError

    for mark in (20, 40):
        with pytest.raises(StopError):
            spread_fold(rule, source, run=run, callback=Marks([mark], stop))
    (older,) = (tmp_path / "kept").rglob("block-000001-0.npz")
    (newer,) = (tmp_path / "kept").rglob("block-000001-1.npz")
    older.write_bytes(newer.read_bytes())
    newer.unlink()
    found, _ = spread_fold(rule, source, run=run)
    for name, value in spread_fold(rule, source, run=Run(threads=2))[0].items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("length", "chunk", "n", "cuts"),
    [
        (40, 10, 2, [(0, 20), (20, 40)]),
        (44, 10, 2, [(0, 22), (22, 44)]),  # not 30 of 44
        (50, 7, 2, [(0, 28), (28, 50)]),
        (30, 30, 3, [(0, 10), (10, 20), (20, 30)]),
        (2, 1, 5, [(0, 12), (12, 24), (24, 36), (36, 48), (48, 60)]),  # along the next axis
    ],
)
def test_blocks_are_cut_at_borders_of_chunks_unless_they_differ(
    tmp_path: Path, length: int, chunk: int, n: int, cuts: list[tuple[int, int]]
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(100, length, 60), chunks=(10, chunk, 60), dtype="f4")
    source, rule = as_source(str(tmp_path / "x.zarr")), rule_of(3, 16, 100)
    _, plan = plan_spread(rule, source, Run(threads=n, memory=10**10))
    assert [group.region[int(length == 2)] for group in plan.groups] == cuts
    assert plan.read_bytes == 100 * 4 * length * 60


def test_what_cannot_be_spread_is_refused(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(100, 30, 6000), chunks=(10, 10, 6000), dtype="f4")
    source, rule = as_source(str(tmp_path / "x.zarr")), rule_of(3, 16, 100)
    with pytest.raises(PlanError, match="threads"):
        plan_spread(rule, source, Run(threads=1))
    with pytest.raises(PlanError, match="workers") as refused:
        plan_spread(rule, source, Run(threads=2, memory=10**7))
    need = named_need(refused.value)
    assert plan_spread(rule, source, Run(threads=2, memory=need))[1].task_bytes <= need
    assert plan_spread(rule, source, Run(threads=8, memory=need))[1].task_bytes < need
    with pytest.raises(PlanError, match="callback"):
        plan_spread(rule, source, Run(threads=2, memory=need), callback=True)
    with pytest.raises(PlanError, match="components"):
        spread_usable(1000, rule, source)


def named_need(refusal: PlanError) -> int:
    return int(str(refusal).split("at least ")[1].split(" MB")[0].replace(",", "")) * 10**6


def spread_usable(usable: int, rule: Any, source: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "usable_bytes", lambda: usable)
        plan_spread(rule, source, Run(threads=2, memory=10**9))


def test_a_cluster_holds_the_blocks(cluster: Any, tmp_path: Path) -> None:
    x = samples(np.random.default_rng(0), 90, (9, 8), "f4")
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 9, 8))
    source, rule = as_source(str(tmp_path / "x.zarr")), rule_of(3, 16, 90)
    found, report = spread_fold(rule, source, run=Run(client=cluster))
    here, _ = spread_fold(rule, source, run=Run(threads=2))
    for name, value in here.items():
        np.testing.assert_array_equal(found[name], value)
    assert len(report.plan.groups) == 2
    for _ in range(100):
        if not any(cluster.run(left_on_worker).values()):
            return
        time.sleep(0.1)
    raise AssertionError(cluster.run(left_on_worker))


def left_on_worker(dask_worker: Any) -> list[str]:
    """The objects and threads of blocks on a worker."""
    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("block-")]
    return [*map(str, dask_worker.state.actors), *threads]


def test_errors_on_a_worker_are_those_of_the_samples(cluster: Any, tmp_path: Path) -> None:
    x = samples(np.random.default_rng(0), 40, (4, 6), "f4")
    x[17, 3] = np.inf
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 4, 6))
    with pytest.raises(DataError, match="17"):
        spread_fold(rule_of(2, 8, 40), as_source(str(tmp_path / "x.zarr")), run=Run(client=cluster))


def test_a_dask_array_is_refused_on_a_cluster(cluster: Any) -> None:
    import dask.array as da

    with pytest.raises(PlanError, match="ingest"):
        spread_fold(rule_of(2, 8, 40), as_source(da.zeros((40, 4, 6))), run=Run(client=cluster))

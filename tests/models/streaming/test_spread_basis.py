"""A basis that fits no task is spread over blocks of attributes, and nobody notices but for the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import Progress, StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import as_source
from dpca.storage.run import Run

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


@pytest.mark.parametrize("options", [{"n_passes": 2}, {"keep_state": True}], ids=str)
def test_what_needs_the_whole_basis_is_refused(store: str, options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="keep_state"):
        StreamingPCA(**OPTIONS | options).fit(store, run=spread_run(store))


def test_refusals_name_the_ways_out(store: str) -> None:
    run = spread_run(store)
    with pytest.raises(PlanError, match="threads"):
        StreamingPCA(**OPTIONS).fit(store, run=Run(threads=1, memory=run.memory))
    with pytest.raises(PlanError, match="incremental-svd"):
        StreamingPCA(9, method="oja", shuffle=True).fit(store, run=Run(threads=2, memory=30 * 10**6))
    with pytest.raises(PlanError, match="incremental-svd"):
        StreamingPCA(9, method="covariance").fit(store, run=Run(threads=2, memory=30 * 10**6))

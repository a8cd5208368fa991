"""`StreamingPCA.iter_fit`: the progress so far, budgets, and resuming after the samples that were seen."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from dpca import StreamingPCA, TrajectoryPCA
from dpca.storage import DataError
from tests.conftest import smooth_images

N, SHAPE = 300, (6, 5, 3)
MODEL = StreamingPCA(4, method="incremental-svd", batch_size=32, oversampling=6, random_state=0)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N, SHAPE)


@pytest.fixture(scope="module")
def path(images: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("stack") / "x.zarr")
    zarr.create_array(path, data=images, chunks=(8, *SHAPE))
    return path


def last(model: Any, X: Any, **how: Any) -> Any:
    *_, found = model.iter_fit(X, **how)
    assert found.finished
    assert found.model is model
    return model


def test_models_so_far_are_those_of_the_samples_so_far(images: np.ndarray, path: str) -> None:
    model, seen = clone(MODEL), []
    for told in model.iter_fit(path):
        seen.append(told)
        assert told.n_samples_seen == told.model.n_samples_seen_ == model.n_samples_seen_
    assert [told.n_samples_seen for told in seen] == [16, 64, 256, N]
    assert [told.finished for told in seen] == [False, False, False, True]
    for told in seen:
        expected = clone(MODEL).partial_fit(images[: told.n_samples_seen])
        for name in ("components_", "mean_", "explained_variance_", "captured_bound_", "captured_estimate_"):
            np.testing.assert_array_equal(getattr(told.model, name), getattr(expected, name))
        assert told.captured_variance == pytest.approx(expected.explained_variance_ratio_.sum())
        assert told.captured_bound == expected.captured_bound_
    chain = clone(MODEL).set_params(execution="chain").fit(path)
    np.testing.assert_array_equal(model.components_, chain.components_)


@pytest.mark.cases(1)
@pytest.mark.parametrize("given", [{}, {"shuffle": True}, {"method": "oja", "shuffle": True}], ids=str)
def test_a_model_that_was_stopped_and_stored_goes_on_to_the_same_bytes(
    given: dict[str, Any], path: str, tmp_path: Path
) -> None:
    own = {"oversampling": None} if "method" in given else {}
    model = clone(MODEL).set_params(keep_state=True, **given, **own)
    whole = last(clone(model), path)
    part = last(clone(model), path, max_samples=77)
    assert part.n_samples_seen_ == 77
    part.save(tmp_path / "m.zarr")
    again = StreamingPCA.load(tmp_path / "m.zarr")
    last(again, path, max_samples=101)
    assert again.n_samples_seen_ == 178
    last(again, path)
    assert again.n_samples_seen_ == N
    for name in ("components_", "mean_", "explained_variance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    last(again, path)  # no samples remain
    np.testing.assert_array_equal(again.components_, whole.components_)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(40, 300), st.integers(5, 30), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.integers(0, 99)
)
def test_what_a_look_says_of_itself_is_true(n: int, d: int, k: int, over: int, is_sorted: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * 0.8 ** np.arange(d) + 10
    x = x[np.argsort(x[:, 0])] if is_sorted else x
    model = StreamingPCA(k, method="incremental-svd", oversampling=over, batch_size=k + over + 3, random_state=0)
    for told in model.iter_fit(x):
        rows = x[: told.n_samples_seen] - x[: told.n_samples_seen].mean(axis=0)
        energies = np.linalg.svd(rows, compute_uv=False) ** 2
        captured = (rows @ told.model.components_.T.astype(float)) ** 2
        kept = len(told.model.components_)
        assert told.captured_bound <= captured.sum() / energies[:kept].sum() + 1e-9
        assert told.captured_variance <= captured.sum() / energies.sum() + 1e-9
        assert np.isnan(told.captured_estimate) or told.captured_bound <= told.captured_estimate <= 1


def test_a_budget_of_time_ends_it_with_a_model(path: str) -> None:
    model = last(clone(MODEL), path, max_seconds=1e-9)
    assert 2 <= model.n_samples_seen_ < N
    assert model.transform(path).shape == (N, 4)


def test_one_that_is_left_early_leaves_a_model_and_nothing_that_runs(images: np.ndarray, path: str) -> None:
    model, before = clone(MODEL), threading.active_count()
    for told in model.iter_fit(path):
        kept = told.model
        if told.n_samples_seen >= 64:
            break
    assert threading.active_count() <= before
    expected = clone(MODEL).partial_fit(images[:64])
    np.testing.assert_array_equal(model.components_, expected.components_)
    model.partial_fit(images[64:])
    np.testing.assert_array_equal(kept.components_, expected.components_)
    np.testing.assert_array_equal(model.components_, clone(MODEL).partial_fit(images).components_)


def test_an_error_leaves_the_model_of_the_links_before(images: np.ndarray) -> None:
    bad = images.astype(np.float32)
    bad[280] = np.nan
    model = clone(MODEL)
    with pytest.raises(DataError, match="sample.280"):
        last(model, bad_stack := zarr.array(bad, chunks=(8, *SHAPE)))
    assert bad_stack.shape[0] == N
    assert model.n_samples_seen_ == 256
    np.testing.assert_array_equal(model.components_, clone(MODEL).partial_fit(bad[:256]).components_)


def test_what_it_refuses(images: np.ndarray, path: str) -> None:
    for wrong, said in (({"n_passes": 2}, "one pass"), ({"track_scores": True}, "track_scores")):
        with pytest.raises(DataError, match=said):
            clone(MODEL).set_params(**wrong).iter_fit(path)
    for wrong in ({"max_seconds": -1}, {"max_samples": 0}, {"every": None}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            clone(MODEL).iter_fit(path, **wrong)
    with pytest.raises(DataError, match="state"):
        clone(MODEL).fit(images).iter_fit(path)
    seen = clone(MODEL).partial_fit(images)
    with pytest.raises(DataError, match="same"):
        last(seen, images[:100])
    with pytest.raises(DataError, match="same"):
        seen.iter_fit(images[:, :3])


def test_frames_are_placed_before_they_come(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(1, 7, 3)) + 0.1 * rng.normal(size=(40, 7, 3))
    model = TrajectoryPCA(2, random_state=0, batch_size=10, execution="chain", keep_state=True)
    part = last(clone(model), frames, max_samples=15)
    part.save(tmp_path / "m.zarr")
    again = last(TrajectoryPCA.load(tmp_path / "m.zarr"), frames)
    np.testing.assert_allclose(again.transform(frames), clone(model).fit(frames).transform(frames), atol=1e-12)

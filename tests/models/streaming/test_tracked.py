"""Scores that are turned along with the components are those of a second pass, but for what was lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from dpca import StreamingPCA
from dpca.models.streaming.tracked import TrackedScores
from dpca.rules.base.state import State
from dpca.storage import DataError

MODEL = StreamingPCA(
    3, batch_size=10, oversampling=12, track_scores=True, keep_state=True, method="incremental-svd", random_state=0
)


def stream(n: int, d: int = 60, seed: int = 0, noise: float = 0.01) -> np.ndarray:
    """Waves of which others come to the fore as time goes on, float32."""
    t, x = np.arange(n)[:, None] / n, np.linspace(0, np.pi, d)
    parts = [(1 + i * t) * np.cos(7 * (i + 1) * t + i) * np.sin((i + 1) * x) / (i + 1) ** 2 for i in range(8)]
    return (sum(parts) + 3 + noise * np.random.default_rng(seed).normal(size=(n, d))).astype(np.float32)


@pytest.mark.parametrize("center", [True, False])
def test_tracked_scores_are_those_of_a_second_pass(center: bool) -> None:
    rows, model = stream(203), clone(MODEL).set_params(center=center)
    for start in range(0, 203, 7):
        model.partial_fit(rows[start : start + 7])
        if start in (0, 70, 196):  # looks change nothing
            seen = rows[: start + 7]
            again = model.transform(seen)
            assert model.tracked_scores_.shape == again.shape
            assert np.linalg.norm(model.tracked_scores_ - again) < 2e-3 * np.linalg.norm(again)
    assert model.tracked_scores_.dtype == np.float32
    assert len(model._tracked.parts) <= 6
    whitened = clone(model).set_params(whiten=True).partial_fit(rows)
    np.testing.assert_allclose(whitened.tracked_scores_, whitened.transform(rows), atol=0.01)


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 37), min_size=1, max_size=8))
def test_pieces_of_any_length_give_the_same_scores(sizes: list[int]) -> None:
    """What is lost does not depend on them where all directions are kept."""
    rows, model = stream(sum(sizes), 12), clone(MODEL).set_params(oversampling=9)
    for piece in np.split(rows, np.cumsum(sizes)[:-1]):
        model.partial_fit(piece)
    np.testing.assert_allclose(model.tracked_scores_, model.transform(rows), atol=1e-4)


def test_a_model_that_goes_on_from_its_store_tracks_the_same(tmp_path: Path) -> None:
    rows, model = stream(95), clone(MODEL)
    model.partial_fit(rows[:44]).save(tmp_path / "m.zarr")
    loaded = StreamingPCA.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.tracked_scores_, model.tracked_scores_)
    for each in (model, loaded):
        each.partial_fit(rows[44:]).save(tmp_path / "m.zarr", overwrite=True)
    np.testing.assert_array_equal(loaded.tracked_scores_, model.tracked_scores_)
    few = clone(MODEL).partial_fit(rows[:4])
    few.save(tmp_path / "few.zarr")
    np.testing.assert_array_equal(StreamingPCA.load(tmp_path / "few.zarr").tracked_scores_, few.tracked_scores_)


def test_values_that_leave_the_range_are_tracked_or_refused() -> None:
    rows, model = stream(60), clone(MODEL)
    model.partial_fit(rows[:15])
    before = model.tracked_scores_
    with pytest.raises(DataError, match="divide"):
        model.partial_fit(np.full((20, 60), 3e38, np.float32) * np.sign(rows[:20] - 3))
    np.testing.assert_array_equal(model.tracked_scores_, before)
    model.partial_fit(rows[15:])
    assert len(model.tracked_scores_) == 60


def test_parts_are_joined_as_they_grow() -> None:
    """As many multiplications a sample as the logarithm of the number of batches; nothing is lost in one plane."""
    rng, plane = np.random.default_rng(0), np.linalg.qr(np.random.default_rng(1).normal(size=(5, 2)))[0].T
    tracked, rows = TrackedScores(), rng.normal(size=(330, 2)) @ plane
    before = after = State({"basis": plane, "mean": np.zeros(5)})
    for i in range(33):
        turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        before, after = after, State({"basis": turn @ plane, "mean": rng.normal(size=2) @ plane})
        tracked.taken(before, after, [rows[10 * i : 10 * i + 3], rows[10 * i + 3 : 10 * i + 10]])
        assert len(tracked.parts) <= 1 + np.log2(i + 1)
    found = tracked.by(after, plane[::-1], plane[0], rows[:1])
    np.testing.assert_allclose(found, (np.concatenate([rows, rows[:1]]) - plane[0]) @ plane[::-1].T, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.fit(stream(30)), "requires partial_fit"),
        (lambda m: m.set_params(method="oja").partial_fit(stream(30)), "not oja"),
        (lambda m: m.partial_fit(stream(30)).merge(m), "merge"),
        (lambda m: m.set_params(track_scores="yes").partial_fit(stream(30)), "track_scores is 'yes'"),
        (lambda m: m.tracked_scores_, "no scores were tracked"),
        (lambda m: m.set_params(track_scores=False).partial_fit(stream(30)).tracked_scores_, "no scores were tracked"),
    ],
)
def test_refused_in_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call(clone(MODEL))


def test_few_attributes_are_tracked_by_the_rule_that_can() -> None:
    model = StreamingPCA(2, track_scores=True, random_state=0).partial_fit(stream(30, 12))
    assert model.method_ == "incremental-svd"

"""The incremental SVD against the SVD of everything at once."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.algebra.linalg import release_scratch
from dpca.rules.base.state import State
from dpca.rules.incremental.incremental_svd import IncrementalSVD


def fold(rule: IncrementalSVD, x: np.ndarray, rows: int) -> State:
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), rows):
        state = rule.update(state, x[start : start + rows])
    return state


def decaying(n: int, d: int, seed: int = 0, decay: float = 0.7) -> np.ndarray:
    """Samples with a decaying spectrum, away from 0."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) * decay ** np.arange(d)) @ np.linalg.qr(rng.normal(size=(d, d)))[0] + rng.normal(
        size=d
    )


def svd(x: np.ndarray, k: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, components and variances of weighted samples, in float64."""
    x = x.astype(np.float64)
    w = np.ones(len(x)) if weights is None else weights
    mean = w @ x / w.sum()
    _, s, v = np.linalg.svd(np.sqrt(w)[:, None] * (x - mean), full_matrices=False)
    return mean, v[:k], s[:k] ** 2 / (w.sum() - (w**2).sum() / w.sum())


def same_subspace(a: np.ndarray, b: np.ndarray, atol: float) -> None:
    np.testing.assert_allclose(a @ a.T, np.eye(len(a)), atol=max(atol, 1e-12))
    np.testing.assert_allclose(np.linalg.svd(a @ b.T, compute_uv=False), 1, atol=atol)


def test_two_steps_by_hand() -> None:
    """Scatter diag(2, 0), then + [[2, 6], [6, 18]], of which only the larger eigenpair stays."""
    rule = IncrementalSVD(1, oversampling=0)
    state = rule.update(rule.init(2, np.float64), np.array([[1.0, 0], [-1, 0]]))
    np.testing.assert_allclose(state.arrays["energy"], [2])
    found = rule.finish(rule.update(state, np.array([[1.0, 3], [-1, -3]])))
    large, small = 11 + np.sqrt(85), 11 - np.sqrt(85)
    np.testing.assert_allclose(found["explained_variance"], [large / 3])
    np.testing.assert_allclose(found["components"][0], np.array([6, large - 4]) / np.hypot(6, large - 4))
    np.testing.assert_allclose(found["total_variance"], 22 / 3)
    np.testing.assert_allclose(found["kept_energy"], large / 3)
    np.testing.assert_allclose(found["captured_bound"], large / (large + small))


def test_the_mean_moves_by_hand() -> None:
    """0 and 0, then 3: mean 1, scatter 6 although each batch alone has none."""
    rule = IncrementalSVD(1)
    found = rule.finish(fold(rule, np.array([[0.0], [0.0], [3.0]]), 2))
    np.testing.assert_allclose(found["mean"], [1])
    np.testing.assert_allclose(found["explained_variance"], [3])


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 12), st.integers(1, 25), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_exact_where_nothing_is_truncated(n: int, d: int, k: int, rows: int, center: bool, seed: int) -> None:
    x = decaying(n, d, seed)
    rule = IncrementalSVD(k, center=center)
    found = rule.finish(fold(rule, x, rows))
    m = min(k, n, d)
    assert found["components"].shape == (m, d)
    np.testing.assert_allclose(found["mean"], x.mean(0) if center else 0, atol=1e-13)
    shifted = x - x.mean(0) if center else x
    expected = np.linalg.svd(shifted, compute_uv=False) ** 2 / (n - 1)
    # The small eigenproblem has an error of about 1e-12 of the largest eigenvalue.
    atol = 1e-11 * expected[0] + 1e-14
    np.testing.assert_allclose(found["explained_variance"], expected[:m], rtol=1e-9, atol=atol)
    np.testing.assert_allclose(found["total_variance"], expected.sum(), rtol=1e-12)
    np.testing.assert_allclose(found["kept_energy"], expected.sum(), rtol=1e-12)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(m), atol=1e-12)
    projected = ((shifted @ found["components"].T) ** 2).sum(0) / (n - 1)
    np.testing.assert_allclose(projected, expected[:m], rtol=1e-9, atol=atol)
    assert found["captured_bound"] > 1 - 1e-9
    assert (found["components"][np.arange(m), np.abs(found["components"]).argmax(1)] > 0).all()


@given(st.lists(st.integers(0, 30), min_size=2, max_size=5), st.floats(0.5, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_merged_parts_equal_the_whole(lengths: list[int], forgetting: float, seed: int) -> None:
    """Nothing truncated, parts of different means, some empty: any tree of merges is the one stream."""
    x = decaying(sum(lengths) + 2, 6, seed) + np.linspace(0, 5, sum(lengths) + 2)[:, None]
    rule = IncrementalSVD(6, forgetting=forgetting)
    edges = [0, *itertools.accumulate(lengths), len(x)]
    states = [fold(rule, x[a:b], 7) if b > a else rule.init(6, x.dtype) for a, b in itertools.pairwise(edges)]
    while len(states) > 1:
        states = [
            rule.merge(*states[i : i + 2]) if i + 1 < len(states) else states[i] for i in range(0, len(states), 2)
        ]
    merged, whole = rule.finish(states[0]), rule.finish(fold(rule, x, 11))
    for name, value in whole.items():
        np.testing.assert_allclose(
            merged[name], value, rtol=1e-7, atol=1e-9 * abs(whole["explained_variance"][0]), err_msg=name
        )


@pytest.mark.parametrize("forgetting", [0.999, 0.9, 0.3])
def test_forgetting_is_a_weighted_svd_whatever_the_batches(forgetting: float) -> None:
    x = decaying(150, 8, 1) + np.linspace(0, 3, 150)[:, None]
    rule = IncrementalSVD(3, forgetting=forgetting)
    mean, components, variances = svd(x, 3, forgetting ** np.arange(149.0, -1, -1))
    for rows in (1, 13, 150):
        found = rule.finish(fold(rule, x, rows))
        np.testing.assert_allclose(found["mean"], mean, rtol=1e-10)
        np.testing.assert_allclose(found["explained_variance"], variances, rtol=1e-8)
        same_subspace(found["components"], components, 1e-9)


@pytest.mark.parametrize("forgetting", [0.5, 0.9])
@pytest.mark.parametrize("merged", [False, True])
def test_what_was_discarded_is_forgotten_as_what_was_kept(forgetting: float, merged: bool) -> None:
    """By hand: three orthogonal samples of which the larger one stays and f, f^2 go, and one more like it."""
    f, x = forgetting, np.array([[0.0, 0, 1], [0, 1, 0], [2, 0, 0], [2, 0, 0]])
    rule = IncrementalSVD(1, oversampling=0, forgetting=f, center=False)
    state = fold(rule, x[:3], 3)
    state = rule.merge(state, fold(rule, x[3:], 1)) if merged else rule.update(state, x[3:])
    found = rule.finish(state)
    large, small = 4 * f + 4, f**2
    np.testing.assert_allclose(found["captured_bound"], large / (large + small))
    np.testing.assert_allclose(found["total_variance"] / found["kept_energy"], (large + small + f**3) / large)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_where_samples_are_forgotten_and_directions_discarded(seed: int) -> None:
    """Against the covariance of weighted samples whose spread turns, so that what was discarded comes to count."""
    rng = np.random.default_rng(seed)
    scales = np.stack([np.r_[np.ones(6), np.full(6, 3.0)], np.r_[np.full(6, 3.0), np.ones(6)]])
    x, f = rng.normal(size=(400, 12)) * scales[np.arange(400) // 200], 0.99
    rule = IncrementalSVD(3, oversampling=1, forgetting=f)
    found = rule.finish(fold(rule, x, 20))
    weights = f ** np.arange(399.0, -1, -1)
    centered = np.sqrt(weights)[:, None] * (x - weights @ x / weights.sum())
    captured = np.square(centered @ found["components"].T).sum()
    best = np.square(np.linalg.svd(centered, compute_uv=False)[:3]).sum()
    assert 0.2 < found["captured_bound"] <= captured / best < 0.99


def test_a_merge_leaves_its_second_state_and_an_update_its_batch() -> None:
    rule = IncrementalSVD(2, oversampling=1)
    x = decaying(40, 7)
    kept = x.copy()
    a, b = fold(rule, x[:20], 10), fold(rule, x[20:], 10)
    before = {name: value.copy() for name, value in b.arrays.items()}
    rule.merge(a, b)
    np.testing.assert_array_equal(x, kept)
    assert b.counts == {"n_samples": 20}
    for name, value in before.items():
        np.testing.assert_array_equal(b.arrays[name], value)


@pytest.mark.parametrize("rows", [1, 17, 100, 1000])
@pytest.mark.parametrize("order", ["random", "sorted"])
def test_truncated_it_is_near_the_best_and_knows_how_near(rows: int, order: str) -> None:
    """The certificate, with truth at hand: energies <= captured <= optimum, captured / optimum >= bound."""
    x = decaying(1000, 60, 2, decay=0.95)
    if order == "sorted":
        x = x[np.argsort(x @ svd(x, 1)[1][0])]
    rule = IncrementalSVD(5, oversampling=10)
    found = rule.finish(fold(rule, x, rows))
    optimum = svd(x, 5)[2].sum()
    captured = np.cov(x @ found["components"].T, rowvar=False).trace()
    assert found["explained_variance"].sum() <= captured * (1 + 1e-12)
    assert found["captured_bound"] <= captured / optimum <= 1 + 1e-12
    assert captured / optimum > (0.9995 if order == "random" else 0.99)
    assert found["captured_bound"] > 0.6
    np.testing.assert_allclose(found["total_variance"], x.var(0, ddof=1).sum(), rtol=1e-12)
    assert found["explained_variance"].sum() < found["kept_energy"] < found["total_variance"]


def test_more_oversampling_loses_less() -> None:
    x = decaying(2000, 60, 3, decay=0.95)
    optimum = svd(x, 5)[2].sum()
    losses = []
    for oversampling in (0, 5, 20):
        rule = IncrementalSVD(5, oversampling=oversampling)
        components = rule.finish(fold(rule, x, 50))["components"]
        losses.append(1 - np.cov(x @ components.T, rowvar=False).trace() / optimum)
    assert losses[0] > 10 * losses[1] > 100 * losses[2]


@pytest.mark.parametrize(
    "dtype", [bool, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.float16, np.float32, ">f8"]
)
def test_every_dtype_against_numpy(dtype: str | type) -> None:
    values = decaying(300, 12, 4) * 40
    x = values > 0 if dtype is bool else (np.abs(values) if np.dtype(dtype).kind == "u" else values).astype(dtype)
    rule = IncrementalSVD(3)
    found = rule.finish(rule.merge(fold(rule, x[:170], 33), fold(rule, x[170:], 64)))
    mean, components, variances = svd(x, 3)
    wide = np.dtype(dtype).itemsize > 2 and dtype is not np.float32
    assert found["components"].dtype == (np.float64 if wide else np.float32)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12 if wide else 2e-6, atol=1e-6)
    np.testing.assert_allclose(found["explained_variance"], variances, rtol=1e-10 if wide else 1e-5)
    same_subspace(found["components"].astype(float), components, 1e-10 if wide else 2e-6)


def test_samples_fewer_than_components_and_no_variance() -> None:
    rule = IncrementalSVD(4)
    one = rule.finish(fold(rule, np.full((1, 6), 7, np.uint8), 1))
    np.testing.assert_array_equal(one["mean"], np.full(6, 7))
    assert one["components"].shape == (1, 6)
    assert one["explained_variance"] == [0]
    three = rule.finish(fold(rule, decaying(3, 6), 1))
    assert three["components"].shape == (3, 6)
    np.testing.assert_allclose(three["explained_variance"][2], 0, atol=1e-12)
    for x in (np.full((50, 6), 3, np.float32), np.zeros((50, 6), np.uint8)):
        flat = rule.finish(fold(rule, x, 20))
        np.testing.assert_array_equal(flat["explained_variance"], np.zeros(4))
        np.testing.assert_allclose(flat["components"] @ flat["components"].T, np.eye(4), atol=1e-6)
        assert flat["total_variance"] == 0
        assert flat["captured_bound"] == 1


def test_constant_and_repeated_attributes_and_samples() -> None:
    x = np.repeat(np.random.default_rng(5).integers(0, 256, (40, 2), dtype=np.uint8), 2, axis=1)
    x = np.repeat(np.hstack([x, np.full((40, 1), 9, np.uint8)]), 3, axis=0)
    rule = IncrementalSVD(5)
    found = rule.finish(fold(rule, x, 7))
    np.testing.assert_allclose(found["explained_variance"][:2], svd(x, 2)[2], rtol=1e-5)
    np.testing.assert_allclose(found["explained_variance"][2:], 0, atol=1e-3)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(5), atol=1e-6)
    np.testing.assert_allclose(found["components"][:2, 4], 0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1e18, 1e30])
def test_units_do_not_matter(scale: float) -> None:
    """Squares of these numbers are nothing, or infinite, in float32."""
    x = decaying(200, 9, 6).astype(np.float32)
    rule = IncrementalSVD(3)
    found, plain = (rule.finish(fold(rule, v, 50)) for v in (x * np.float32(scale), x))
    np.testing.assert_allclose(found["explained_variance"], plain["explained_variance"] * scale**2, rtol=1e-4)
    same_subspace(found["components"].astype(float), plain["components"].astype(float), 1e-5)


def test_a_large_mean_does_not_cost_the_variance() -> None:
    rng = np.random.default_rng(7)
    x = (10_000 + rng.normal(size=(3_000, 4)) * [4, 3, 2, 1]).astype(np.float32)
    rule = IncrementalSVD(4)
    found = rule.finish(fold(rule, x, 100))
    mean, _, variances = svd(x, 4)
    np.testing.assert_allclose(found["explained_variance"], variances, rtol=1e-4)
    np.testing.assert_allclose(found["mean"], mean, atol=1e-5)


def test_what_comes_later_and_is_much_larger_is_not_missed() -> None:
    """A converged basis has no information on orthogonal directions: the Nyström step must detect their energy."""
    rng = np.random.default_rng(8)
    x = np.zeros((3_000, 40))
    x[:2_500, :20] = rng.normal(size=(2_500, 20))
    x[2_500:, 20:] = 100 * rng.normal(size=(500, 20))
    rule = IncrementalSVD(5, oversampling=5)
    found = rule.finish(fold(rule, x, 100))
    optimum = svd(x, 5)[2].sum()
    assert np.cov(x @ found["components"].T, rowvar=False).trace() > 0.965 * optimum


def test_a_result_can_be_asked_for_between_batches() -> None:
    rule = IncrementalSVD(3, oversampling=4)
    x = decaying(400, 30, 9, decay=0.9)
    state = fold(rule, x[:200], 50)
    rule.finish(state)
    first = rule.finish(state)
    same = rule.finish(fold(rule, x[:200], 50))
    np.testing.assert_allclose(first["components"], same["components"], atol=1e-10)
    for start in range(200, 400, 50):
        rule.update(state, x[start : start + 50])
    np.testing.assert_allclose(
        rule.finish(state)["components"], rule.finish(fold(rule, x, 50))["components"], atol=1e-9
    )


@pytest.mark.parametrize(("n_rows", "d"), [(100, 6_000), (600, 1_000), (5, 9_000)])
def test_memory_stays_within_what_is_planned(n_rows: int, d: int) -> None:
    rule = IncrementalSVD(10, oversampling=20)
    x = np.random.default_rng(10).integers(0, 256, (n_rows, d), dtype=np.uint8)
    state = rule.init(d, x.dtype)
    assert state.nbytes == rule.state_bytes(d, x.dtype)
    other = rule.update(rule.init(d, x.dtype), x)
    release_scratch()
    tracemalloc.start()
    for _ in range(3):
        rule.update(state, x)
    rule.merge(state, other)
    result = rule.finish(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(value.nbytes for value in result.values()) <= rule.result_bytes(d, x.dtype)
    assert peak <= rule.work_bytes(n_rows, d, x.dtype) + rule.result_bytes(d, x.dtype)

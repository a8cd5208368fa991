"""Components of few samples by their Gram matrix, against numpy's SVD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.snapshots import SnapshotPCA


def fitted(x: np.ndarray, k: int, cuts: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    rule = SnapshotPCA(len(x), k)
    state = rule.init(x.shape[1], x.dtype)
    for batch in np.split(x, cuts):
        state = rule.update(state, batch)
    return rule.finish(state)


@pytest.mark.cases(8)
@settings(max_examples=60, deadline=None)
@example(n=2, d=1, k=1, dtype="uint8", seed=0)
@example(n=2, d=4_100, k=2, dtype="float32", seed=1)
@example(n=70, d=9_000, k=5, dtype="float64", seed=2)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 900),
    k=st.integers(1, 50),
    dtype=st.sampled_from(["uint8", "int16", "uint16", "float32", "float64", "bool"]),
    seed=st.integers(0, 1000),
)
def test_values_and_subspaces_are_those_of_the_svd(n: int, d: int, k: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = 100 + 30 * rng.normal(size=(n, min(n, 6))) @ rng.normal(size=(min(n, 6), d)) + rng.normal(size=(n, d))
    kind: Any = np.dtype(dtype)
    x = (x > 100 if dtype == "bool" else x.clip(0, 255) if kind.kind in "iu" else x).astype(dtype)
    found, exact = fitted(x, k), x.astype(np.float64)
    mean = exact.mean(axis=0)
    _, values, rows = np.linalg.svd(exact - mean, full_matrices=False)
    variance, k = values**2 / (n - 1), min(k, d)
    expected = np.zeros(k)
    expected[: min(k, len(variance))] = variance[:k]
    total = variance.sum()
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["total_variance"], total, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["explained_variance"], expected, rtol=1e-6, atol=1e-9 * total + 1e-12)
    components = found["components"].astype(np.float64)
    tolerance = 1e-12 if kind == np.float64 else 1e-6
    np.testing.assert_allclose(components @ components.T, np.eye(k), atol=10 * tolerance)
    assert (components[np.arange(k), np.abs(components).argmax(axis=1)] > 0).all()
    for j in range(1, min(k, len(values)) + 1):
        # Where the spectrum has a gap, the leading rows span what those of the SVD span.
        following = values[j] if j < len(values) else 0.0
        if values[j - 1] > 1.05 * following and values[j - 1] > 1e-6 * values[0]:
            cosines = np.linalg.svd(components[:j] @ rows[:j].T, compute_uv=False)
            assert cosines.min() > 1 - 1e-9 - 10 * tolerance


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_batches_do_not_change_a_bit(dtype: Any) -> None:
    x = (100 * np.random.default_rng(0).random((9, 700))).astype(dtype)
    whole = fitted(x, 4)
    for cuts in ((1,), (3, 3, 8), tuple(range(1, 9))):
        for name, values in fitted(x, 4, cuts).items():
            np.testing.assert_array_equal(values, whole[name])


@pytest.mark.parametrize("n", [6, 70])
def test_parts_of_any_shapes_are_solved_together_in_their_order(n: int) -> None:
    """Cells at a border are smaller; large ones are solved one by one. Which ones come together changes no bit."""
    rng, rule = np.random.default_rng(1), SnapshotPCA(n, 3)
    parts = [rng.normal(size=(n, d)) for d in (40, 40, 40, 7, 7, 40, 9_000, 9_000, 9_000, 2, *[5_000] * 40)]
    alone = [fitted(x, 3) for x in parts]
    together = list(rule.finish_all(rule.update(rule.init(x.shape[1], x.dtype), x) for x in parts))
    assert len(together) == len(alone)
    for found, expected in zip(together, alone, strict=True):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


def test_samples_without_enough_variance_complete_the_basis() -> None:
    x = np.zeros((5, 30), np.float32)
    x[2:, 7] = 3  # one direction in five samples
    found = fitted(x, 4)
    np.testing.assert_allclose(found["explained_variance"], [9 * 0.3, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(found["components"][0]), np.eye(30)[7], atol=1e-7)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(4), atol=1e-6)


def test_samples_so_far_have_a_result() -> None:
    x = np.random.default_rng(2).normal(size=(8, 50))
    rule = SnapshotPCA(8, 2)
    state = rule.update(rule.init(50, x.dtype), x[:5])
    np.testing.assert_allclose(rule.finish(state)["explained_variance"], fitted(x[:5], 2)["explained_variance"])


def test_more_samples_than_announced_are_an_error() -> None:
    rule, x = SnapshotPCA(3, 1), np.ones((4, 2))
    with pytest.raises(ValueError, match="n_samples"):
        rule.update(rule.init(2, x.dtype), x)


@pytest.mark.parametrize("size", [1e200, 1e160])
def test_squares_out_of_range_are_an_error(size: float) -> None:
    with pytest.raises(ValueError, match="range"):
        fitted(size * np.eye(3, 8), 1)

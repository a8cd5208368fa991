"""States stacked: many small covariances in one call are what each is alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.kernels.algebra.namespace import to_numpy
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.moments import Moments
from tests.conftest import sender

Send = Callable[[np.ndarray], Any]


LIBRARIES = ["numpy", "array-api-strict", "torch"]


@pytest.fixture(params=LIBRARIES)
def send(request: pytest.FixtureRequest) -> Send:
    """Stacks of numpy are taken too, matrix by matrix."""
    return sender(request.param)


def stacked(rule: Any, batches: Sequence[np.ndarray], send: Send) -> State:
    """Fold batches (m, n, d)."""
    state = rule.init(batches[0].shape[2], batches[0].dtype)
    state.move_to(send(batches[0]))
    state = state.stacked(len(batches[0]))
    for batch in batches:
        state = rule.update(state, send(batch))
    return state


def compare(rule: Any, batches: Sequence[np.ndarray], send: Send) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the result of each of a stack, beside that of numpy alone."""
    found = {name: to_numpy(array) for name, array in rule.finish(stacked(rule, batches, send)).items()}
    pairs = []
    for i in range(len(batches[0])):
        state = rule.init(batches[0].shape[2], batches[0].dtype)
        for batch in batches:
            state = rule.update(state, np.ascontiguousarray(batch[i]))
        pairs.append(({name: array[i] for name, array in found.items()}, rule.finish(state)))
    return pairs


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(2, 30), st.integers(1, 6))),
    st.integers(0, 30),
)
@pytest.mark.parametrize("library", LIBRARIES)
@settings(deadline=None, max_examples=40)
def test_bytes_are_exact_in_stacks_of_any_shape(library: str, x: np.ndarray, cut: int) -> None:
    for found, alone in compare(Covariance(), [x[:, :cut], x[:, cut:]], sender(library)):
        np.testing.assert_array_equal(found["covariance"], alone["covariance"])
        np.testing.assert_array_equal(found["mean"], alone["mean"])


@pytest.mark.parametrize("rows", [1000, 3000])
def test_bytes_of_bright_and_dark_cells(send: Send, rows: int) -> None:
    """The one that needs the shortest products decides for all."""
    x = 128 + np.random.default_rng(0).integers(0, 3, (3, 6000, 4), dtype=np.uint8)
    x[1] = 255
    for found, alone in compare(Covariance(), [x[:, :rows], x[:, rows:]], send):
        np.testing.assert_array_equal(found["covariance"], alone["covariance"])


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_each_moves_its_own_shift(send: Send, dtype: type) -> None:
    """The second begins far from where it goes on, the third is constant, the first and the last are neither."""
    x = np.random.default_rng(1).normal(100, 30, (4, 900, 5))
    x[1, 200:] += 20_000
    x[2] = 17
    x = x.astype(dtype)
    for found, alone in compare(Covariance(), [x[:, :200], x[:, 200:]], send):
        scale = np.sqrt(np.outer(alone["covariance"].diagonal(), alone["covariance"].diagonal())) + 1e-300
        assert np.abs((found["covariance"] - alone["covariance"]) / scale).max() < 3e-6
        np.testing.assert_allclose(found["mean"], alone["mean"], rtol=1e-7)


def test_each_has_its_own_unit(send: Send) -> None:
    units = np.array([1e-38, 1e-26, 1.0, 1e20, 3e37])
    x = (np.random.default_rng(2).standard_normal((5, 300, 4)) * units[:, None, None]).astype(np.float32)
    for (found, _), unit, one in zip(compare(Covariance(), [x[:, :99], x[:, 99:]], send), units, x, strict=True):
        expected = np.cov(one.astype(float) / unit, rowvar=False)
        np.testing.assert_allclose(found["covariance"] / unit**2, expected, atol=3e-6)


def test_merging(send: Send) -> None:
    x = np.random.default_rng(3).normal(size=(3, 200, 4)) + np.arange(3)[:, None, None]
    for rule in (Covariance(center=False), Moments()):
        whole = rule.finish(stacked(rule, [x], send))
        halves = rule.merge(stacked(rule, [x[:, :70]], send), stacked(rule, [x[:, 70:]], send))
        for name, array in rule.finish(halves.copy()).items():
            np.testing.assert_allclose(to_numpy(array), to_numpy(whole[name]), rtol=1e-12, atol=1e-12)


def test_moments(send: Send) -> None:
    x = np.random.default_rng(4).normal(50, 9, (3, 600, 7)).astype(np.float32)
    for found, alone in compare(Moments(), [x[:, :5], x[:, 5:]], send):
        np.testing.assert_allclose(found["mean"], alone["mean"], rtol=1e-13)
        np.testing.assert_allclose(found["variance"], alone["variance"], rtol=1e-11)


@pytest.mark.parametrize(("d", "k"), [(12, 3), (12, None), (210, 3)])
def test_components(send: Send, d: int, k: int | None) -> None:
    """At the last size the third is one on which orthogonal iteration does not converge, and the fourth is constant."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 300, d)) * 0.7 ** np.arange(d)
    x[2], x[3] = rng.normal(size=(300, d)), 4
    for i, (found, alone) in enumerate(compare(CovariancePCA(k), [x[:, :100], x[:, 100:]], send)):
        np.testing.assert_allclose(found["total_variance"], alone["total_variance"], rtol=1e-12)
        np.testing.assert_allclose(found["explained_variance"], alone["explained_variance"], rtol=1e-6, atol=1e-12)
        rows = found["components"]
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-11)
        if i < 3:
            turned = np.abs(np.sum(rows * alone["components"], axis=1))
            np.testing.assert_allclose(turned[:3], 1, atol=1e-7)


def test_values_that_are_not_finite_are_refused(send: Send) -> None:
    x = np.ones((3, 9, 2), np.float32)
    x[1, 4, 0] = np.nan
    with pytest.raises(ValueError, match="float64"):
        Covariance().finish(stacked(Covariance(), [x], send))

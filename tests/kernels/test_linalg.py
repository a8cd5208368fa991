"""The dense kernels against numpy, on both sides of every size where another one takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpca.kernels import linalg
from dpca.kernels.bounded_eigh import bounded_eigh
from tests.traced import traced_peak


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in every task; BLAS threads beside a busy neighbor spin more than they compute."""
    with threadpool_limits(1, user_api="blas"):
        yield


SIZES = [1, 2, 63, 64, 65, 130, 512, 513, 600]
#: A signaling NaN in float32, which warns when it is added.
SIGNALING = np.array(0x7F800001, np.uint32).view(np.float32)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Floats whose products and sums are exact in any order."""
    return np.random.default_rng(seed).integers(-30, 31, shape).astype(np.float32)


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram_whatever_was_in_the_memory_before(d: int, dtype: type) -> None:
    x = integers(17, d).astype(dtype)
    exact = x.astype(np.int64).T @ x.astype(np.int64)
    out = linalg.gram_lower(x, np.full((d, d), np.nan, dtype))
    np.testing.assert_array_equal(np.tril(out), np.tril(exact))


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("scale", [1.0, 2.0**70])
def test_adding_a_product_neither_reads_nor_spreads_what_is_above_the_diagonal(d: int, scale: float) -> None:
    x = integers(9, d)
    part = linalg.gram_lower(x, np.zeros((d, d), np.float32))
    if d > 512:
        part[np.triu_indices(d, 1)] = SIGNALING
    total = np.full((d, d), 3.0)
    linalg.add_lower(total, part, scale)
    expected = 3 + scale * (x.astype(float).T @ x)
    np.testing.assert_array_equal(np.tril(total), np.tril(expected))
    assert np.isfinite(total).all()


@pytest.mark.parametrize("d", SIZES)
def test_adding_an_outer_product(d: int) -> None:
    u = integers(2, d).astype(float)
    v = u[::-1] * 4
    total = np.full((d, d), 5.0)
    linalg.add_outer_lower(total, u, v)
    np.testing.assert_array_equal(np.tril(total), np.tril(5 + u.T @ v))


@pytest.mark.parametrize("d", SIZES)
def test_symmetrize(d: int) -> None:
    matrix = integers(d, d)
    lower = np.tril(matrix)
    expected = lower + np.tril(lower, -1).T
    matrix[np.triu_indices(d, 1)] = np.nan
    np.testing.assert_array_equal(linalg.symmetrize(matrix), expected)


def test_eigenpairs_by_hand() -> None:
    values, rows = linalg.leading_eigh(np.array([[2.0, 99.0], [-1.0, 2.0]]), 2)
    np.testing.assert_allclose(values, [3, 1], rtol=1e-15)
    # Of equal magnitudes the first one found is made positive.
    np.testing.assert_allclose(np.abs(rows), np.sqrt(0.5), rtol=1e-15)
    assert rows[0, 0] * rows[0, 1] < 0 < rows[1, 0] * rows[1, 1]
    assert (rows.max(axis=1) > 0).all()


@lru_cache
def orthogonal(d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]


def spectrum(d: int, decay: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A covariance with known eigenvalues."""
    values = decay(np.arange(d))
    matrix = (orthogonal(d) * values) @ orthogonal(d).T
    return (matrix + matrix.T) / 2, values


DECAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "photographs": lambda i: 1.0 / (1 + i) ** 2,
    "slow": lambda i: (1.0 + i) ** -1.2,  # only what takes more steps than four converges
    "flat": lambda i: 1 + 0.01 / (1 + i),
    "few": lambda i: (i < 7) / (1.0 + i),
}


# 1000 is where orthogonal iteration begins; 20 and 300 lie on both sides of the share that it is used for.
@pytest.mark.cases(12)
@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 1), (5, 2), (5, 3), (60, 60), (300, 20), (1000, 20), (1000, 300)])
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_eigenpairs_of_known_spectra(d: int, k: int, decay: Callable[[np.ndarray], np.ndarray]) -> None:
    matrix, known = spectrum(d, decay)
    given = np.tril(matrix)
    given[np.triu_indices(d, 1)] = np.nan  # only the lower triangle counts
    values, rows = linalg.leading_eigh(given, k)
    # The bound is on the captured variance. Single values that are close together may exchange a little.
    np.testing.assert_allclose(values.sum(), known[:k].sum(), rtol=2e-9)
    np.testing.assert_allclose(values, known[:k], rtol=1e-6, atol=1e-13)
    np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-11)
    # Rows are eigenvectors: what they miss of the variance is of second order in this residual.
    assert np.linalg.norm(matrix @ rows.T - rows.T * values, 2) < 4e-6 * known[0]
    assert (rows[np.arange(k), np.abs(rows).argmax(1)] > 0).all()


@pytest.mark.parametrize("unit", [1e-60, 1e45])
def test_eigenpairs_in_units_that_float32_does_not_reach(unit: float) -> None:
    matrix, known = spectrum(1000, DECAYS["photographs"])
    values, rows = linalg.leading_eigh(matrix * unit, 10)
    np.testing.assert_allclose(values, known[:10] * unit, rtol=1e-6)
    np.testing.assert_allclose(rows @ rows.T, np.eye(10), atol=1e-11)


@pytest.mark.parametrize("d", [3, 700, 1000])
def test_nothing_varies(d: int) -> None:
    values, rows = linalg.leading_eigh(np.zeros((d, d)), 3)
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(400, 20), (400, 60), (401, 200), (400, 400), (1100, 20), (1100, 600)])
def test_the_eigensolver_takes_no_more_memory_than_it_says(d: int, k: int) -> None:
    matrix, _ = spectrum(d, DECAYS["photographs"])
    limit = linalg.eigh_bytes(d, k) + 8 * d * k + 100_000
    peak, _ = traced_peak(matrix.copy, lambda given: linalg.leading_eigh(given, k), limit)
    assert peak <= limit


def test_signs_by_hand() -> None:
    rows = np.array([[0.1, -0.9], [-0.5, 0.2], [0.0, 0.0]], np.float32)
    expected = np.array([[-0.1, 0.9], [0.5, -0.2], [0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(linalg.fix_signs(rows), expected)
    assert rows[1, 0] == np.float32(0.5)  # in place


def test_scratch_is_reused_by_name_and_never_shared_between_threads() -> None:
    first = linalg.scratch("test", (4, 5), np.float32)
    assert np.shares_memory(first, linalg.scratch("test", (2, 5), np.float64))
    assert not np.shares_memory(first, linalg.scratch("other", (4, 5), np.float32))
    assert linalg.scratch("test", (0, 7), np.float64).shape == (0, 7)
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(linalg.scratch("test", (4, 5), np.float32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, elsewhere[0])
    linalg.release_scratch()
    assert not np.shares_memory(first, linalg.scratch("test", (4, 5), np.float32))
    linalg.release_scratch()


@pytest.mark.parametrize(("d", "k"), [(30, 4), (30, 30), (260, 5), (260, 30)])
@pytest.mark.parametrize("spectrum", ["slow", "flat", "tied"])
def test_the_bound_on_all_other_eigenvalues_holds_and_is_near(d: int, k: int, spectrum: str) -> None:
    """Orthogonal iteration, and the direct solver; also where the next eigenvalue is the last one's equal."""
    values = {"slow": 1 / (1 + np.arange(d)), "flat": np.ones(d), "tied": 2.0 ** -((np.arange(d) + 1) // 4)}[spectrum]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    matrix = (turn * values) @ turn.T
    found, rows, beyond, errors = bounded_eigh(matrix.copy(), k)
    np.testing.assert_allclose(found, values[:k], rtol=1e-6)
    residuals = np.linalg.norm(rows @ matrix - found[:, None] * rows, axis=1)
    assert (residuals <= errors + 1e-12).all()
    following = values[k] if k < d else 0.0
    assert following * (1 - 1e-14) <= beyond <= (following + values[k - 1]) / 2 + 1e-6

"""The dense kernels against numpy, on both sides of every size where another one takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import array_api_strict
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpca.kernels.algebra import bounded_eigh as bounded_eigh_module
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.bounded_eigh import bounded_eigh
from dpca.kernels.algebra.namespace import to_numpy
from tests.helpers.traced import traced_peak


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
    linalg.scratch("gram", (d, d), dtype)[...] = np.nan
    out = linalg.gram_lower("gram", x)
    np.testing.assert_array_equal(np.tril(out), np.tril(exact))


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("scale", [1.0, 2.0**70])
def test_adding_a_product_neither_reads_nor_spreads_what_is_above_the_diagonal(d: int, scale: float) -> None:
    x = integers(9, d)
    part = linalg.gram_lower("gram", x)
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
    stack = np.stack([lower, 2 * lower])
    np.testing.assert_array_equal(linalg.symmetrize(matrix), expected)
    np.testing.assert_array_equal(linalg.symmetrize(stack), [expected, 2 * expected])


@pytest.mark.parametrize("send", [np.asarray, array_api_strict.asarray], ids=["numpy", "the standard"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_are_brought_to_one_by_powers_of_two(send: Any, dtype: type) -> None:
    # The power itself must be a float64.
    small, large = float(np.finfo(dtype).smallest_subnormal), min(float(np.finfo(dtype).max), 2.0**1022)
    tops = [large, -large, -3 * small, small, 5.0, 0.0, np.inf, 5.0]
    given = np.zeros((len(tops), 2, 3), dtype)
    given[:, 1, 2], given[:, 0, 0] = tops, np.array(tops, dtype) / 2
    which = np.array([True] * 7 + [False])
    x = send(given.copy())
    scale = to_numpy(linalg.bring_to_one(x, send(which)))
    found = to_numpy(x)
    mantissa = np.frexp(scale)[0]
    np.testing.assert_array_equal(mantissa, 0.5)  # powers of two
    np.testing.assert_array_equal(found[:6] * scale[:6, None, None], given[:6].astype(float))
    assert ((np.abs(found[:5]).max(axis=(1, 2)) >= 0.5) & (np.abs(found[:5]).max(axis=(1, 2)) < 1)).all()
    np.testing.assert_array_equal(scale[5:], 1)
    np.testing.assert_array_equal(found[6:], given[6:])
    assert linalg.bring_to_one(send(given[5:]), send(which[5:])) is None


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


# Where orthogonal iteration ends between 1e-9 and 1e-7, and where it would, but is given up.
@pytest.mark.parametrize(
    ("decay", "k"), [(lambda i: 0.9**i, 4), (lambda i: 0.95**i, 4), (lambda i: (1.0 + i) ** -0.8, 10)]
)
def test_no_more_than_a_billionth_of_the_captured_variance_is_lacking(
    decay: Callable[[np.ndarray], np.ndarray], k: int
) -> None:
    matrix, known = spectrum(240, decay)
    values, rows = linalg.leading_eigh(matrix.copy(), k)
    captured = np.einsum("ij,jk,ik->", rows, matrix, rows)
    assert known[:k].sum() * (1 - 1e-9) < captured <= known[:k].sum() * (1 + 1e-13)
    np.testing.assert_allclose(values.sum(), captured, rtol=1e-12)


@pytest.mark.parametrize(
    ("decay", "k"),
    [
        (DECAYS["photographs"], 10),
        (DECAYS["slow"], 10),
        (lambda i: 0.95**i, 10),
        (lambda i: 0.93**i, 4),  # takes more than four steps in float64
        (lambda i: (1.0 + i) ** -0.6, 30),  # takes four, with as many components as it is used for
    ],
)
def test_orthogonal_iteration_converges_where_it_is_faster(decay: Callable[[np.ndarray], np.ndarray], k: int) -> None:
    matrix, known = spectrum(240, decay)
    values, _, converged, following = linalg.orthogonal_iteration(matrix, k)
    assert converged
    np.testing.assert_allclose([values[-1], following], known[k - 1 : k + 1], rtol=1e-3)


@pytest.mark.parametrize(("base", "k"), [(0.2, 10), (0.5, 20), (0.6, 30)])
def test_small_eigenvalues_are_as_precise_as_large_ones(base: float, k: int) -> None:
    """They hardly count in the captured variance, and float32 cannot tell them from its rounding."""
    matrix, known = spectrum(240, lambda i: base**i)
    values, _ = linalg.leading_eigh(matrix, k)
    np.testing.assert_allclose(values, known[:k], rtol=1e-8)


@pytest.mark.parametrize("d", [30, 240])
@pytest.mark.parametrize("k", [4, 20])
def test_a_stack_is_solved_one_by_one(d: int, k: int) -> None:
    """Matrices for which orthogonal iteration converges, does not, and has nothing to converge to."""
    alone = np.zeros((d, d))
    alone[1, 1] = 3.0
    matrices = [np.zeros((d, d)), alone, *(spectrum(d, decay)[0] for decay in DECAYS.values())]
    given = np.tril(np.stack(matrices).reshape(3, 2, d, d))
    values, rows = linalg.leading_eigh(given, k)
    for i, matrix in enumerate(matrices):
        mine, own = values[i // 2, i % 2], rows[i // 2, i % 2]
        known = np.maximum(np.linalg.eigvalsh(matrix)[::-1][:k], 0)
        np.testing.assert_allclose(mine, known, rtol=1e-6, atol=1e-13)
        np.testing.assert_allclose(own @ own.T, np.eye(k), atol=1e-11)
        assert np.linalg.norm(matrix @ own.T - own.T * mine, 2) <= 4e-6 * known[0]


@pytest.mark.parametrize("shape", [(), (2,)], ids=["one", "stack"])
@pytest.mark.parametrize(("d", "k"), [(30, 4), (30, 30)])
def test_no_eigenvalue_is_negative(d: int, k: int, shape: tuple[int, ...]) -> None:
    """Those of a matrix of rank 1 are zero but for rounding, of either sign."""
    row = np.random.default_rng(0).standard_normal(d)
    matrix = np.broadcast_to(np.outer(row, row), (*shape, d, d))
    assert np.linalg.eigvalsh(matrix).min() < 0  # or there is nothing to test
    leading, _ = linalg.direct_eigh(matrix.copy(), k)
    _, _, least, _ = linalg.extreme_eigh(matrix.copy(), 1, k)
    for values in (leading, least):
        assert (values >= 0).all()
    np.testing.assert_allclose(leading[..., 0], row @ row, rtol=1e-12)


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


@pytest.mark.parametrize(
    ("d", "k"), [(400, 20), (400, 50), (400, 60), (400, 70), (401, 200), (400, 400), (1100, 20), (1100, 180)]
)
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
    assert linalg.scratch("test", (4, 6), np.float32).shape == (4, 6)  # more than there was
    first = linalg.scratch("test", (4, 5), np.float32)
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


@pytest.mark.parametrize("d", [20, 21, 40, 47])
def test_large_matrices_are_factored_in_bands(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower triangle remains, because a factorization that failed is repeated."""
    monkeypatch.setattr(bounded_eigh_module, "_LARGEST_FACTORED", 19)
    monkeypatch.setattr(bounded_eigh_module, "_BAND", 7)
    x = np.random.default_rng(d).normal(size=(d, d + 2))
    least = np.linalg.eigvalsh(x @ x.T)[0]
    for shift, positive in ((least * (1 - 1e-6), True), (least * (1 + 1e-6), False)):
        matrix = x @ x.T - shift * np.eye(d)
        kept = matrix.copy()
        assert bounded_eigh_module._cholesky(matrix) == positive
        np.testing.assert_array_equal(np.tril(matrix, -1), np.tril(kept, -1))

"""BLAS and LAPACK without Python's global lock."""

from __future__ import annotations

from threading import Event, Thread

import numpy as np
import pytest

from dpca.kernels.algebra import unlocked
from dpca.storage.remote.tasks import one_blas_thread

TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SHAPES = pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 3), (3, 5), (40, 200)])


@TYPES
@SHAPES
@pytest.mark.parametrize("rows", [False, True])
def test_only_the_lower_triangle_of_products_is_written(dtype: type, n: int, d: int, rows: bool) -> None:
    x = np.random.default_rng(0).standard_normal((n, d)).astype(dtype)
    expected = x @ x.T if rows else x.T @ x
    out = np.full(expected.shape, np.nan, dtype)
    unlocked.syrk(x, out, rows=rows)
    tolerance = 20 * np.finfo(dtype).eps * d * n
    np.testing.assert_allclose(np.tril(out), np.tril(expected), atol=tolerance)
    assert np.isnan(out[np.triu_indices(len(out), 1)]).all()
    unlocked.syrk(x, out, factor=0.5, beta=2.0, rows=rows)
    np.testing.assert_allclose(np.tril(out), 2.5 * np.tril(expected), atol=2.5 * tolerance)


@TYPES
@SHAPES
def test_eigenvectors_are_rows(dtype: type, n: int, d: int) -> None:
    x = np.random.default_rng(1).standard_normal((n, d))
    whole = (x.T @ x).astype(dtype)
    lower = np.tril(whole) + np.triu(np.full((d, d), np.nan, dtype), 1)  # which nobody reads
    known, size = np.linalg.eigvalsh(whole.astype(np.float64)), np.abs(whole).sum()
    tolerance = 20 * np.finfo(dtype).eps * size
    every = lower.copy()
    values = unlocked.eigh(every)
    np.testing.assert_allclose(values, known, atol=tolerance)
    np.testing.assert_allclose(every @ whole, values[:, None] * every, atol=tolerance)
    np.testing.assert_allclose(every @ every.T, np.eye(d), atol=100 * d * np.finfo(dtype).eps)
    k = -(-d // 3)
    values, rows = unlocked.partial_eigh(lower.copy(), k)
    assert rows.shape == (k, d)
    np.testing.assert_allclose(values, known[-k:], atol=tolerance)
    np.testing.assert_allclose(rows @ whole, values[:, None] * rows, atol=tolerance)


def test_a_function_that_fails_says_so() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="potrf"):
        unlocked.call("potrf", "L", 2, np.array([[1.0, 2.0], [2.0, 1.0]]), 2)


@pytest.mark.parametrize("matrix", [np.eye(4)[::2, ::2], np.asfortranarray(np.eye(3)[:2]), np.eye(3, dtype=np.int32)])
def test_arrays_that_a_function_would_misread_are_refused(matrix: np.ndarray) -> None:
    with pytest.raises(ValueError, match="C-ordered"):
        unlocked.call("potrf", "L", 2, np.eye(2), 2, matrix)


def test_other_threads_run_meanwhile() -> None:
    """With the lock, a thread that waits for it would go on once or twice."""
    matrix, begun, done, n_waits = np.random.default_rng(2).standard_normal((900, 900)), Event(), Event(), 0

    def decompose() -> None:
        with one_blas_thread():
            begun.set()
            unlocked.eigh(matrix)
        done.set()

    thread = Thread(target=decompose)
    thread.start()
    begun.wait()
    while not done.wait(0.001):
        n_waits += 1
    thread.join()
    assert n_waits > 4

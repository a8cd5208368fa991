"""Kernels equal scikit-learn's, in the precision of their type, wherever the samples lie."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import pairwise_kernels

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import to_numpy
from dpca.kernels.inner_products import Kernel, KernelMap
from tests.helpers.traced import traced_peak

KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {"gamma": 0.01},
    "poly": {"gamma": 0.01, "degree": 3, "coef0": 0.5},
    "linear": {},
    "cosine": {},
}


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(sorted(KERNELS)),
    st.integers(1, 9),
    st.integers(1, 7),
    st.integers(1, 12),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
)
def test_kernels_are_scikit_learns(name: str, n: int, m: int, d: int, dtype: Any, points: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z = (rng.normal(100, 10, (rows, d)).astype(kind) for rows, kind in ((n, dtype), (m, points)))
    kernel, wide = Kernel(name, **KERNELS[name]), x.astype(np.float64)
    expected = pairwise_kernels(wide, z.astype(np.float64), metric=name, **KERNELS[name])
    found = KernelMap(kernel, z)(x)
    assert found.dtype == np.result_type(np.float32, points, np.float64 if dtype is np.float64 else np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-10 if points is np.float64 else 2e-5)
    own = pairwise_kernels(wide, metric=name, **KERNELS[name]).diagonal()
    np.testing.assert_allclose(kernel.diagonal(x), own, rtol=1e-10)
    np.testing.assert_allclose(KernelMap(kernel, z).own(), KernelMap(kernel, z).own().T)


def test_distances_far_from_0_keep_the_precision_of_their_samples() -> None:
    rng = np.random.default_rng(2)
    x, z = (rng.normal(3e4, 1, (rows, 5)).astype(np.float32) for rows in (9, 7))
    expected = pairwise_kernels(x.astype(float), z.astype(float), gamma=0.3, metric="rbf")
    np.testing.assert_allclose(KernelMap(Kernel("rbf", 0.3), z)(x), expected, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("n", "m", "d"), [(500, 40, 300), (40, 500, 300), (400, 300, 10), (2, 49, 20_000)])
def test_kernels_take_the_memory_that_is_planned(name: str, n: int, m: int, d: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, z = ((200 * rng.random((rows, d))).astype(dtype) for rows in (n, m))
    z = z.astype(np.float32)
    limit = KernelMap(Kernel(name), z).scratch_bytes(n, dtype) + 100_000

    def prepared() -> KernelMap:
        linalg.release_scratch()
        return KernelMap(Kernel(name), z)

    peak, _ = traced_peak(prepared, lambda mapped: mapped(x), limit)
    linalg.release_scratch()
    assert peak <= limit


def test_a_row_of_zeros_has_no_direction() -> None:
    zero = np.zeros((1, 3))
    cosine = Kernel("cosine")
    np.testing.assert_array_equal(KernelMap(cosine, np.eye(3))(zero), [[0, 0, 0]])
    np.testing.assert_array_equal(cosine.diagonal(np.concatenate([zero, np.eye(3)])), [0, 1, 1, 1])


@pytest.mark.parametrize("send", [np.asarray, array_api_strict.asarray], ids=["numpy", "the standard"])
def test_nothing_is_nearer_to_a_point_than_that_point(send: Any) -> None:
    """Rounding makes squared distances of equal samples negative; no kernel exceeds exp(-0)."""
    z = np.random.default_rng(0).normal(0, 100, (40, 300)).astype(np.float32)
    found = to_numpy(KernelMap(Kernel("rbf", gamma=1.0), z)(send(z)))
    assert found.max() <= 1
    assert (found[~np.eye(40, dtype=bool)] == 0).all()


def test_a_degree_is_at_least_the_kernel_with_itself() -> None:
    """A sample that no point is near has that share alone: D^-1/2 K D^-1/2 is 1 there, and no larger anywhere."""
    rng = np.random.default_rng(1)
    points, far = rng.normal(size=(6, 3)), rng.normal(50, 1, (4, 3))
    mapped = KernelMap(Kernel("rbf", gamma=0.1), points, np.full(6, 2.0))
    np.testing.assert_allclose(mapped.diagonal(far), 1, rtol=1e-12)
    np.testing.assert_allclose(mapped(far), 0, atol=1e-12)
    plain = pairwise_kernels(points, gamma=0.1, metric="rbf")
    degrees = 2 * plain.sum(axis=1)
    np.testing.assert_allclose(mapped.diagonal(points), 1 / degrees, rtol=1e-12)
    np.testing.assert_allclose(mapped(points), plain / np.sqrt(np.outer(degrees, degrees)), rtol=1e-12)


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sample_of_zeros_has_no_degree_and_shares_nothing(name: str, dtype: Any) -> None:
    """Its kernels are 0, and so is the root that they are divided by; as a point, too."""
    x = np.array([[0, 0], [3, 4]], dtype)
    own = 1.0 if name == "cosine" else 25.0
    mapped = KernelMap(Kernel(name), x, np.ones(2))
    np.testing.assert_allclose(mapped(x), [[0, 0], [0, own / own]], rtol=1e-6)
    np.testing.assert_allclose(mapped.diagonal(x), [0, 1], rtol=1e-6)

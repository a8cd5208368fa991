"""Kernels equal scikit-learn's, in the precision of their type, wherever the samples lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import pairwise_kernels

from dpca.kernels.inner_products import Kernel, KernelMap

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


def test_a_row_of_zeros_has_no_direction() -> None:
    zero = np.zeros((1, 3))
    cosine = Kernel("cosine")
    np.testing.assert_array_equal(KernelMap(cosine, np.eye(3))(zero), [[0, 0, 0]])
    np.testing.assert_array_equal(cosine.diagonal(np.concatenate([zero, np.eye(3)])), [0, 1, 1, 1])

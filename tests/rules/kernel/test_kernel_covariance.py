"""The rule of kernel PCA on arrays of other libraries, and merged from parts in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.kernels.algebra.namespace import to_numpy
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.rules.covariance.covariance import Covariance
from dpca.rules.kernel.kernel_covariance import KernelComponents, degree_weights, degrees, root_of

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
KERNELS = [Kernel("rbf", 0.2), Kernel("poly", 0.1, 2, 1.0), Kernel("linear"), Kernel("cosine")]


def fold(rule: Any, x: np.ndarray, send: Any = np.asarray) -> Any:
    state = rule.init(x.shape[1], x.dtype)
    for batch in (x[:7], x[7:7], x[7:]):
        state = rule.update(state, send(batch))
    return state


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_parts_in_any_order_are_the_whole_anywhere(kernel: Kernel, send: Any) -> None:
    rule = KernelComponents(Covariance(), KernelMap(kernel, X[::4]), 3)
    expected = rule.finish(fold(rule, X))
    merged = rule.merge(fold(rule, X[40:]), rule.merge(fold(rule, X[:25]), fold(rule, X[25:40])))
    for found in (rule.finish(merged), rule.finish(fold(rule, X, send))):
        for name in ("eigenvalues", "total", "residual", "captured_bound"):
            np.testing.assert_allclose(to_numpy(found[name]), expected[name], rtol=1e-4, atol=1e-3, err_msg=name)
        np.testing.assert_allclose(found["landmark_scores"], expected["landmark_scores"], atol=1e-3)


def test_degrees_are_sums_of_kernels() -> None:
    """Exactly, where all samples are landmarks; never less than the kernel of a sample with itself."""
    kernel = Kernel("rbf", 0.2)
    x = X.astype(np.float64)
    plain = KernelMap(kernel, x)
    rule = degrees(plain)
    weights = degree_weights(plain, rule.finish(fold(rule, x))["mean"], len(x))
    k = plain.own()
    sums = k.sum(axis=1)
    divided = KernelMap(kernel, x, weights)
    np.testing.assert_allclose(divided(x), k / np.sqrt(np.outer(sums, sums)), rtol=1e-5)
    np.testing.assert_allclose(divided.diagonal(x), 1 / sums, rtol=1e-5)
    alone = np.full((1, 4), 100.0)
    np.testing.assert_allclose(divided.diagonal(alone), [1.0])


def test_the_sampled_bound_holds_for_nearly_all_samples() -> None:
    """Three standard errors are necessary: without them every second bound on the residual is too low."""
    rng = np.random.default_rng(0)
    x, k = rng.standard_t(3, size=(500, 2)), 1
    to_landmarks = KernelMap(Kernel("rbf", 0.05), x[:5])
    state = fold(KernelComponents(Covariance(center=False), to_landmarks, k), x)
    along = to_landmarks(x) @ root_of(to_landmarks.own())[0]
    left = KernelMap(Kernel("rbf", 0.05), x).own() - along @ along.T
    largest = np.linalg.eigvalsh(left)[-1]
    bounds = []
    for seed in range(20):
        held_out = x[np.random.default_rng(seed).choice(500, 250, replace=False)]
        found = KernelComponents(Covariance(center=False), to_landmarks, k, held_out=held_out).finish(state.copy())
        captured, bound = found["eigenvalues"].sum(), float(found["captured_bound"])
        bounds.append(captured / bound - captured)
    assert np.mean(np.array(bounds) >= largest) > 0.95
    assert np.mean(bounds) < 2 * largest < float(found["residual"])

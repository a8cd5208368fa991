"""The default rule on MNIST, one pass, batches of 100: the numbers it has to reach (ALGORITHMS.md, section 4)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpca.rules.base.state import State
from dpca.rules.incremental.incremental_svd import IncrementalSVD

Digits = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def digits(real_data: Path) -> Digits:
    """60,000 images, the order that sorts them by class, covariance and its eigenvalues, descending."""
    raw = gzip.decompress((real_data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((real_data / "mnist" / "train-labels-idx1-ubyte.gz").read_bytes())
    x = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)
    order = np.argsort(np.frombuffer(labels, np.uint8, offset=8), kind="stable")
    mean = x.mean(axis=0)
    # Some at a time: all in double precision would be half a gigabyte, several times.
    products = sum(part.T @ part for part in (x[i : i + 2000].astype(float) for i in range(0, len(x), 2000)))
    covariance = (products - len(x) * np.outer(mean, mean)) / (len(x) - 1) / 255**2
    return x, order, covariance, np.linalg.eigvalsh(covariance)[::-1]


def fold(rule: IncrementalSVD, x: np.ndarray) -> State:
    state = rule.init(784, np.float32)
    for start in range(0, len(x), 100):
        state = rule.update(state, x[start : start + 100] / np.float32(255))
    return state


def convergence(components: np.ndarray, digits: Digits) -> float:
    basis = np.linalg.qr(components.T.astype(float))[0]
    return float(np.log10(1 - np.trace(basis.T @ digits[2] @ basis) / digits[3][: len(components)].sum()))


@pytest.mark.long
@pytest.mark.parametrize(("k", "is_sorted", "at_most"), [(5, False, -7.4), (50, True, -3.7)])
def test_one_pass_in_any_order(digits: Digits, k: int, is_sorted: bool, at_most: float) -> None:
    order = digits[1] if is_sorted else np.random.default_rng(0).permutation(60_000)
    rule = IncrementalSVD(k)
    found = rule.finish(fold(rule, digits[0][order]))
    loss = convergence(found["components"], digits)
    assert loss <= at_most
    assert found["captured_bound"] <= 1 - 10**loss
    np.testing.assert_allclose(found["explained_variance"], digits[3][:k], rtol=0.03)
    np.testing.assert_allclose(found["total_variance"], digits[3].sum(), rtol=1e-6)


@pytest.mark.long
def test_64_sorted_segments_merged_as_a_tree(digits: Digits) -> None:
    rule = IncrementalSVD(5)
    x = digits[0][digits[1]]
    states = [fold(rule, part) for part in np.array_split(x, 64)]
    while len(states) > 1:
        states = [rule.merge(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
    assert convergence(rule.finish(states[0])["components"], digits) <= -4.5

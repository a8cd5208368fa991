"""Landmarks are drawn as randomly pivoted Cholesky draws them, however many are proposed at once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dpca.kernels.inner_products import Kernel
from dpca.rules.kernel.landmarks import pivots


def test_the_first_two_have_the_probabilities_of_single_draws() -> None:
    """By hand: the probability of a sample is proportional to the residual of its kernel with itself."""
    x = np.random.default_rng(0).normal(size=(8, 3))
    kernel = x @ x.T
    expected = {}
    for i, j in itertools.permutations(range(8), 2):
        left = np.diag(kernel) - kernel[:, i] ** 2 / kernel[i, i]
        expected[i, j] = kernel[i, i] / np.trace(kernel) * left[j] / left.sum()
    rng, draws = np.random.default_rng(1), 2000
    counts = dict.fromkeys(expected, 0)
    for _ in range(draws):
        first, second = pivots(Kernel("linear"), x, 8, rng)[:2]
        counts[int(first), int(second)] += 1
    excess = [(counts[pair] - draws * p) / np.sqrt(draws * p) for pair, p in expected.items()]
    # 56 pairs, 55 degrees of freedom: more than 100 in two of 10,000 tests.
    assert sum(e * e for e in excess) < 100


class Impatient(np.random.Generator):
    """A generator with few draws: a search for a landmark that does not exist would draw indefinitely."""

    left = 50

    def choice(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        assert self.left, "still drawing"
        return super().choice(*args, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_never_drawn(dtype: type, seed: int) -> None:
    """Residuals of samples in the span of the landmarks are rounding errors of either sign, not probabilities."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(300, 5)) @ rng.normal(size=(5, 40))).astype(dtype)
    assert len(pivots(Kernel("linear"), np.concatenate([x, x, 0 * x]), 100, Impatient(np.random.PCG64(seed)))) == 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_are_as_many_as_dimensions(dtype: type) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 5)) @ rng.normal(size=(5, 40))).astype(dtype)
    chosen = pivots(Kernel("linear"), np.concatenate([x, x, 0 * x]), 100, rng)
    assert len(chosen) == 5
    assert len(pivots(Kernel("linear"), 0 * x, 3, rng)) == 0
    chosen = pivots(Kernel("rbf", 0.01), x, 150, rng)
    assert len(chosen) == len(set(chosen.tolist())) == 150
